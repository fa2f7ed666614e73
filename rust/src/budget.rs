//! Runs untrusted work on a thread of its own with a limit on memory and on time.
//!
//! minijinja counts instructions (fuel), but one instruction can double a string, so fuel alone
//! does not bound memory: forty `{% set x = x ~ x %}` ask for a terabyte. The allocator of this
//! library therefore keeps a count per thread. An allocator may not unwind, and a thread cannot
//! be killed, so a thread that goes over its budget is parked for good inside the allocator: it
//! holds no lock that others need, costs no CPU, and leaks at most its budget. The caller counts
//! such threads and stops using a template that made a few of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const UNLIMITED: isize = isize::MAX / 2;

thread_local! {
    // Const-initialised without a destructor: reading them never allocates, which the allocator
    // relies on.
    static LEFT: Cell<isize> = const { Cell::new(UNLIMITED) };
    static RUN: Cell<*const Run> = const { Cell::new(ptr::null()) };
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Running,
    Done,
    OverBudget,
}

struct Run {
    phase: Mutex<Phase>,
    changed: Condvar,
    abandoned: AtomicBool,
}

impl Run {
    fn finish(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.changed.notify_all();
    }

    /// Waits until the thread is done or over budget; Running means that time is up.
    fn wait(&self, limit: Duration) -> Phase {
        let deadline = Instant::now() + limit;
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        while *phase == Phase::Running {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            phase = self
                .changed
                .wait_timeout(phase, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *phase
    }
}

pub struct BudgetAlloc;

#[inline]
fn charge(n: usize) {
    // A Layout is never larger than isize::MAX, so the cast keeps the value.
    let left = LEFT.get().saturating_sub(n as isize);
    LEFT.set(left);
    let run = RUN.get();
    if !run.is_null() {
        check(run, left);
    }
}

fn check(run: *const Run, left: isize) {
    // SAFETY: RUN points to the Run that this thread's closure keeps alive (run_bounded).
    let run = unsafe { &*run };
    if (left >= 0 && !run.abandoned.load(Ordering::Relaxed)) || thread::panicking() {
        return;
    }
    RUN.set(ptr::null());
    LEFT.set(UNLIMITED);
    run.finish(Phase::OverBudget);
    loop {
        thread::sleep(Duration::from_secs(86_400));
    }
}

#[inline]
fn refund(n: usize) {
    LEFT.set(LEFT.get().saturating_add(n as isize));
}

// SAFETY: every call is forwarded to System unchanged; the bookkeeping does not allocate.
unsafe impl GlobalAlloc for BudgetAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        System.alloc(layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        System.alloc_zeroed(layout)
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        refund(layout.size());
        System.dealloc(p, layout)
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        charge(new_size.saturating_sub(layout.size()));
        refund(layout.size().saturating_sub(new_size));
        System.realloc(p, layout, new_size)
    }
}

/// Falls by what this thread allocates and rises by what it frees.
pub fn balance() -> isize {
    LEFT.get()
}

pub struct Limits {
    pub memory_bytes: usize,
    /// Address space; only touched pages count.
    pub stack_bytes: usize,
    pub time: Duration,
}

pub enum Stopped {
    /// The thread could not be started.
    NoThread,
    OverMemory,
    OverTime,
    Panicked,
}

/// Runs work on a new thread. What it owns must be all its own: when it is stopped, the thread
/// stays parked with it. A panic in work is caught and not printed.
pub fn run_bounded<T, F>(limits: &Limits, work: F) -> Result<T, Stopped>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    silence_panics();
    let run = Arc::new(Run {
        phase: Mutex::new(Phase::Running),
        changed: Condvar::new(),
        abandoned: AtomicBool::new(false),
    });
    let theirs = Arc::clone(&run);
    let budget = limits.memory_bytes as isize;
    let thread = thread::Builder::new()
        .name("gs-bounded".into())
        .stack_size(limits.stack_bytes)
        .spawn(move || {
            LEFT.set(budget);
            RUN.set(Arc::as_ptr(&theirs));
            let result = catch_unwind(AssertUnwindSafe(work));
            RUN.set(ptr::null());
            LEFT.set(UNLIMITED);
            theirs.finish(Phase::Done);
            result
        })
        .map_err(|_| Stopped::NoThread)?;
    match run.wait(limits.time) {
        Phase::Done => match thread.join() {
            Ok(Ok(value)) => Ok(value),
            _ => Err(Stopped::Panicked),
        },
        Phase::OverBudget => Err(Stopped::OverMemory),
        Phase::Running => {
            // It parks at its next allocation, or ends when it runs out of fuel.
            run.abandoned.store(true, Ordering::Relaxed);
            Err(Stopped::OverTime)
        }
    }
}

/// A panic of bounded work is reported as an error, so the default message on stderr, which can
/// quote the template or the messages, is left out for it.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if RUN.get().is_null() {
                default(info);
            }
        }));
    });
}
