//! gamasot's Rust part as one static library with two C interfaces: chat templates by minijinja
//! (src/tokenizer/chat_rust.h), constrained output by llguidance (src/tokenizer/grammar_rust.h).
//!
//! No call unwinds into C: whatever panics becomes an error code.

mod budget;
mod constrain;
mod gbnf;
mod pyfmt;
mod template;

use std::ffi::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;
use std::slice;
use std::time::Duration;
use template::{Failure, Handle, Job};

#[global_allocator]
static ALLOC: budget::BudgetAlloc = budget::BudgetAlloc;

// Values of gs_err (src/base/err.h).
const OK: i32 = 0;
const INVALID: i32 = -1;
const TOO_LARGE: i32 = -5;
const UNAVAILABLE: i32 = -8;
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
    write_text(text, err, errlen);
    code
}

/// SAFETY: err points to errlen writable bytes, or is NULL.
unsafe fn report_grammar(failure: &constrain::Failure, err: *mut c_char, errlen: usize) -> i32 {
    use constrain::Failure::{Internal, Invalid, NoMemory, Unavailable};
    let (code, text) = match failure {
        Invalid(text) => (INVALID, text.as_str()),
        Unavailable(text) => (UNAVAILABLE, text.as_str()),
        NoMemory => (NOMEM, "no thread to compile a grammar with"),
        Internal => (INTERNAL, "the grammar failed unexpectedly"),
    };
    write_text(text, err, errlen);
    code
}

/// SAFETY: err points to errlen writable bytes, or is NULL.
unsafe fn write_text(text: &str, err: *mut c_char, errlen: usize) {
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

// ---- Constrained output: src/tokenizer/grammar_rust.h ----

fn contained<T>(
    work: impl FnOnce() -> Result<T, constrain::Failure>,
) -> Result<T, constrain::Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(constrain::Failure::Internal))
}

/// # Safety
/// lens and eos point to that many numbers, bytes to the sum of lens.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_vocab_new(
    lens: *const u32,
    n_vocab: usize,
    bytes: *const u8,
    eos: *const i32,
    n_eos: usize,
    out: *mut *mut constrain::Env,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    *out = ptr::null_mut();
    let result = contained(|| {
        let mut tokens = Vec::with_capacity(n_vocab);
        let mut at = 0usize;
        for &len in slice::from_raw_parts(lens, n_vocab) {
            tokens.push(slice::from_raw_parts(bytes.add(at), len as usize).to_vec());
            at += len as usize;
        }
        let eos: Vec<u32> = if n_eos == 0 {
            vec![]
        } else {
            slice::from_raw_parts(eos, n_eos).iter().map(|&id| id as u32).collect()
        };
        constrain::Env::new(&tokens, &eos)
    });
    match result {
        Ok(env) => {
            *out = Box::into_raw(Box::new(env));
            OK
        }
        Err(failure) => report_grammar(&failure, err, errlen),
    }
}

/// # Safety
/// v comes from gs_rust_vocab_new and is not used any more, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_vocab_free(v: *mut constrain::Env) {
    if !v.is_null() {
        drop(Box::from_raw(v));
    }
}

/// # Safety
/// Pointers as src/tokenizer/grammar_rust.h says.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_grammar_new(
    v: *const constrain::Env,
    kind: i32,
    text: Str,
    memory_bytes: usize,
    time_limit_ms: u32,
    out: *mut *mut constrain::Grammar,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    *out = ptr::null_mut();
    let result = contained(|| {
        let text = text
            .text("the grammar")
            .map_err(|_| constrain::Failure::Invalid("not valid UTF-8".into()))?
            .unwrap_or_default();
        let kind = match kind {
            0 => constrain::Kind::JsonObject,
            1 => constrain::Kind::JsonSchema,
            2 => constrain::Kind::Regex,
            3 => constrain::Kind::Grammar,
            _ => constrain::Kind::OwnLark,
        };
        let budget = constrain::Budget {
            memory_bytes,
            time: Duration::from_millis(u64::from(time_limit_ms)),
        };
        (*v).compile(kind, text, &budget)
    });
    match result {
        Ok(grammar) => {
            *out = Box::into_raw(Box::new(grammar));
            OK
        }
        Err(failure) => report_grammar(&failure, err, errlen),
    }
}

/// # Safety
/// g comes from gs_rust_grammar_new and is not used any more, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_grammar_free(g: *mut constrain::Grammar) {
    if !g.is_null() {
        drop(Box::from_raw(g));
    }
}

/// # Safety
/// g comes from gs_rust_grammar_new.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_grammar_bytes(g: *const constrain::Grammar) -> usize {
    (*g).bytes()
}

/// # Safety
/// g comes from gs_rust_grammar_new.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_grammar_start(
    g: *const constrain::Grammar,
) -> *mut constrain::State {
    match contained(|| Ok((*g).start())) {
        Ok(state) => Box::into_raw(Box::new(state)),
        Err(_) => ptr::null_mut(),
    }
}

/// # Safety
/// s comes from gs_rust_grammar_start and is not used any more, or is NULL.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_state_free(s: *mut constrain::State) {
    if !s.is_null() {
        let _ = contained(|| {
            drop(Box::from_raw(s));
            Ok(())
        });
    }
}

/// # Safety
/// s comes from gs_rust_grammar_start; one thread at a time.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_state_advance(
    s: *mut constrain::State,
    token: i32,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    match contained(|| (*s).advance(token as u32)) {
        Ok(()) => OK,
        Err(failure) => report_grammar(&failure, err, errlen),
    }
}

/// # Safety
/// s comes from gs_rust_grammar_start; one thread at a time; mask has n_words words.
#[no_mangle]
pub unsafe extern "C" fn gs_rust_state_mask(
    s: *mut constrain::State,
    mask: *mut u32,
    n_words: usize,
    err: *mut c_char,
    errlen: usize,
) -> i32 {
    match contained(|| (*s).mask(slice::from_raw_parts_mut(mask, n_words))) {
        Ok(()) => OK,
        Err(failure) => report_grammar(&failure, err, errlen),
    }
}
