//! gamasot's Rust part as one static library with a C interface (src/tokenizer/chat_rust.h): chat templates
//! by minijinja, and llguidance's own C interface for constrained output.
//!
//! No call unwinds into C: whatever panics becomes an error code.

mod budget;
mod pyfmt;
mod template;

use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::slice;
use std::time::Duration;
use template::{Failure, Handle, Job};

// Keeps the llg_* functions in the archive.
pub use llguidance::ffi;

#[global_allocator]
static ALLOC: budget::BudgetAlloc = budget::BudgetAlloc;

// Values of gs_err (src/base/err.h).
const OK: i32 = 0;
const INVALID: i32 = -1;
const TOO_LARGE: i32 = -5;
const NOMEM: i32 = -11;
const INTERNAL: i32 = -17;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    data: *const c_char,
    len: usize,
}

#[repr(C)]
pub struct RenderIn {
    messages: Str,
    tools: Str,
    extra: Str,
    bos: Str,
    eos: Str,
    add_generation_prompt: bool,
    now_s: i64,
    fuel: u64,
    max_output_bytes: usize,
    time_limit_ms: u32,
}

impl Str {
    /// SAFETY: data points to len readable bytes, or is NULL.
    unsafe fn bytes(&self) -> Option<Vec<u8>> {
        if self.data.is_null() {
            None
        } else {
            Some(slice::from_raw_parts(self.data.cast::<u8>(), self.len).to_vec())
        }
    }

    /// SAFETY: as bytes().
    unsafe fn text(&self, what: &str) -> Result<Option<String>, Failure> {
        self.bytes()
            .map(String::from_utf8)
            .transpose()
            .map_err(|_| Failure::Invalid(format!("{what} is not valid UTF-8")))
    }
}

/// Writes a terminated message, cut at a character boundary. Control characters become spaces:
/// the text may quote the template or the messages and ends up in logs.
///
/// SAFETY: err points to errlen writable bytes, or is NULL.
unsafe fn report(failure: &Failure, err: *mut c_char, errlen: usize) -> i32 {
    let (code, text) = match failure {
        Failure::Invalid(text) => (INVALID, text.as_str()),
        Failure::TooLarge(text) => (TOO_LARGE, text.as_str()),
        Failure::NoMemory => (NOMEM, "no thread to render the chat template with"),
        Failure::Internal => (INTERNAL, "rendering the chat template failed unexpectedly"),
    };
    if !err.is_null() && errlen > 0 {
        let mut n = text.len().min(errlen - 1);
        while !text.is_char_boundary(n) {
            n -= 1;
        }
        for (i, &b) in text.as_bytes()[..n].iter().enumerate() {
            *err.add(i) = (if b < 0x20 || b == 0x7f { b' ' } else { b }) as c_char;
        }
        *err.add(n) = 0;
    }
    code
}

fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Internal))
}

/// # Safety
/// Pointers as src/tokenizer/chat_rust.h says.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_template_new(
    source: Str,
    out: *mut *mut Handle,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    let result = guarded(|| {
        let source = source
            .text("the model's chat template")?
            .unwrap_or_default();
        Handle::compile(source)
    });
    match result {
        Ok(handle) => {
            *out = Box::into_raw(Box::new(handle));
            OK
        }
        Err(failure) => {
            *out = ptr::null_mut();
            report(&failure, err, errlen)
        }
    }
}

/// # Safety
/// t comes from gs_rust_template_new and is not used any more, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_template_free(t: *mut Handle) {
    if !t.is_null() {
        drop(Box::from_raw(t));
    }
}

/// # Safety
/// Pointers as src/tokenizer/chat_rust.h says.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_template_render(
    t: *const Handle,
    input: *const RenderIn,
    out: *mut *mut c_char,
    n_out: *mut usize,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    let input = &*input;
    let result = guarded(|| {
        (*t).render(Job {
            messages: input.messages.bytes().unwrap_or_default(),
            tools: input.tools.bytes(),
            extra: input.extra.bytes(),
            bos: input.bos.text("bos_token")?,
            eos: input.eos.text("eos_token")?,
            add_generation_prompt: input.add_generation_prompt,
            now_s: input.now_s,
            fuel: input.fuel,
            max_output_bytes: input.max_output_bytes,
            time: Duration::from_millis(u64::from(input.time_limit_ms)),
        })
    });
    match result {
        Ok(bytes) => {
            let bytes = bytes.into_boxed_slice();
            *n_out = bytes.len();
            *out = Box::into_raw(bytes).cast();
            OK
        }
        Err(failure) => {
            *n_out = 0;
            *out = ptr::null_mut();
            report(&failure, err, errlen)
        }
    }
}

/// # Safety
/// data and n come from one gs_rust_template_render, or data is NULL.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_bytes_free(data: *mut c_char, n: usize) {
    if !data.is_null() {
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(
            data.cast::<u8>(),
            n,
        )));
    }
}
