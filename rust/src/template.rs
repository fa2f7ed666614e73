//! Chat templates: the Jinja environment that Hugging Face's `apply_chat_template` documents
//! (https://huggingface.co/docs/transformers/chat_templating_writing), run by minijinja.

use crate::budget::{run_bounded, Limits, Stopped};
use crate::pyfmt::{json_dumps, py_str, JsonStyle};
use minijinja::value::{from_args, Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use std::collections::BTreeMap;
use std::error::Error as _;
use std::ffi::{c_char, c_long};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// The largest templates in use have about 30 KiB. Expressions compile recursively along a chain
/// of operators, so the length also bounds the stack (see run_bounded).
pub const MAX_TEMPLATE_BYTES: usize = 128 << 10;
const COMPILE_MEMORY_BYTES: usize = 32 << 20;
const BASE_MEMORY_BYTES: usize = 24 << 20;
/// How many parked threads one template may leave behind before it is not run any more.
const MAX_RUNAWAYS: u32 = 3;
const NAME: &str = "chat";

/// Values that a template nests (a list in a list in a list ...) are freed and printed
/// recursively. Each level costs at least 48 counted bytes of heap and well under 1 KiB of stack,
/// so a stack of this many times the memory budget cannot overflow.
const STACK_PER_BUDGET: usize = 20;

fn limits(memory_bytes: usize, time: Duration) -> Limits {
    Limits {
        memory_bytes,
        stack_bytes: memory_bytes.saturating_mul(STACK_PER_BUDGET),
        time,
    }
}

pub enum Failure {
    /// The template, the messages or what the template said about them.
    Invalid(String),
    TooLarge(String),
    NoMemory,
    Internal,
}

pub struct Template {
    env: Environment<'static>,
}

pub struct Handle {
    template: Arc<Template>,
    runaways: AtomicU32,
}

pub struct Job {
    pub messages: Vec<u8>,
    pub tools: Option<Vec<u8>>,
    pub extra: Option<Vec<u8>>,
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub add_generation_prompt: bool,
    pub now_s: i64,
    pub fuel: u64,
    pub max_output_bytes: usize,
    pub time: Duration,
}

/// What `raise_exception` said: meant for the person who sent the messages.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn describe(err: &Error) -> String {
    if let Some(raised) = err.source().and_then(|s| s.downcast_ref::<Raised>()) {
        return format!("the model's chat template refused the messages: {raised}");
    }
    let what = match err.kind() {
        ErrorKind::OutOfFuel => "it did not end within its limit of steps".into(),
        kind => match err.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    match err.line() {
        Some(line) => format!("the model's chat template, line {line}: {what}"),
        None => format!("the model's chat template: {what}"),
    }
}

fn stopped(why: Stopped) -> Failure {
    match why {
        Stopped::NoThread => Failure::NoMemory,
        Stopped::OverMemory => {
            Failure::Invalid("the model's chat template: it used too much memory".into())
        }
        Stopped::OverTime => Failure::Invalid("the model's chat template: it took too long".into()),
        Stopped::Panicked => Failure::Internal,
    }
}

/// Hugging Face adds `{% generation %} ... {% endgeneration %}` to mark what the assistant said
/// in training data. It prints what is inside, so it becomes an `if` that is always taken.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

fn tojson(state: &State, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (ensure_ascii, indent, separators, sort_keys, kwargs): (
        Option<Value>,
        Option<Value>,
        Option<Value>,
        Option<Value>,
        Kwargs,
    ) = from_args(args)?;
    let pick = |given: Option<Value>, name: &str| -> Result<Value, Error> {
        let named: Option<Value> = kwargs.get(name)?;
        Ok(given.or(named).unwrap_or_else(|| Value::from(())))
    };
    let ensure_ascii = pick(ensure_ascii, "ensure_ascii")?.is_true();
    let sort_keys = pick(sort_keys, "sort_keys")?.is_true();
    let separators = pick(separators, "separators")?;
    let indent = pick(indent, "indent")?;
    kwargs.assert_all_used()?;
    let indent = match (indent.kind(), indent.as_str()) {
        (_, Some(text)) => Some(text.chars().take(16).collect()),
        (ValueKind::None | ValueKind::Undefined, _) => None,
        (ValueKind::Bool, _) => Some(if indent.is_true() { " " } else { "" }.to_string()),
        _ => Some(" ".repeat(usize::try_from(indent)?.min(16))),
    };
    let (item_separator, key_separator) = if separators.kind() == ValueKind::Seq {
        (
            separators.get_item_by_index(0)?.to_string(),
            separators.get_item_by_index(1)?.to_string(),
        )
    } else if indent.is_some() {
        (",".into(), ": ".into())
    } else {
        (", ".into(), ": ".into())
    };
    let style = JsonStyle {
        ensure_ascii,
        indent,
        item_separator,
        key_separator,
        sort_keys,
    };
    let limit = state
        .lookup(LIMIT_NAME)
        .and_then(|v| usize::try_from(v).ok())
        .unwrap_or(BASE_MEMORY_BYTES);
    let mut out = String::new();
    json_dumps(value, &style, limit, 0, &mut out)?;
    Ok(Value::from(out))
}

/// Context variable through which tojson knows the output limit. No template can read or set a
/// variable of this name, since it is no identifier.
const LIMIT_NAME: &str = "max output bytes";

fn join(value: &Value, separator: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let named: Option<String> = kwargs.get("d")?;
    let attribute: Option<String> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let separator = separator.or(named).unwrap_or_default();
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        match &attribute {
            Some(name) => py_str(&item.get_attr(name)?, &mut out)?,
            None => py_str(&item, &mut out)?,
        }
    }
    Ok(out)
}

fn string(value: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    py_str(value, &mut out)?;
    Ok(Value::from(out))
}

/// Python's string methods that minijinja_contrib::pycompat lacks.
fn python_method(
    state: &State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(s) = value.as_str() {
        match method {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_prefix(prefix).unwrap_or(s)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(s.strip_suffix(suffix).unwrap_or(s)));
            }
            "partition" | "rpartition" => {
                let (sep,): (&str,) = from_args(args)?;
                let (split, missing) = if method == "partition" {
                    (s.split_once(sep), [s, "", ""])
                } else {
                    (s.rsplit_once(sep), ["", "", s])
                };
                let parts = split.map_or(missing, |(a, b)| [a, sep, b]);
                return Ok(parts.into_iter().map(Value::from).collect());
            }
            "rsplit" => {
                let (sep, max): (&str, Option<usize>) = from_args(args)?;
                let n = max.map_or(usize::MAX, |m| m.saturating_add(1));
                let mut parts: Vec<Value> = s.rsplitn(n, sep).map(Value::from).collect();
                parts.reverse();
                return Ok(Value::from(parts));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// struct tm of the C library; large enough for glibc's (56 bytes) and musl's.
#[repr(C)]
struct Tm([c_long; 16]);

extern "C" {
    fn localtime_r(t: *const i64, out: *mut Tm) -> *mut Tm;
    fn strftime(s: *mut c_char, max: usize, format: *const c_char, tm: *const Tm) -> usize;
}

/// datetime.now().strftime(format), with the time that the caller gave.
fn strftime_at(now_s: i64, format: &str) -> Result<String, Error> {
    let bad = || Error::new(ErrorKind::InvalidOperation, "strftime_now: bad time format");
    // strftime returns 0 both for an empty result and for one that does not fit, hence the dot.
    let format = std::ffi::CString::new(format!("{format}.")).map_err(|_| bad())?;
    let mut tm = Tm([0; 16]);
    let mut text = vec![0u8; 4096];
    // SAFETY: time_t is 64 bits on the systems we build for, tm and text are large enough for
    // what the two functions write, and format is terminated.
    let n = unsafe {
        if localtime_r(&now_s, &mut tm).is_null() {
            return Err(bad());
        }
        strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &tm)
    };
    if n == 0 {
        return Err(bad());
    }
    text.truncate(n - 1);
    String::from_utf8(text).map_err(|_| bad())
}

fn has_items(v: &Value) -> bool {
    matches!(
        v.kind(),
        ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
    )
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(python_method);
    env.set_formatter(|out, _state, value| {
        match value.as_str() {
            Some(s) => out.write_str(s)?,
            None => {
                let mut text = String::new();
                py_str(value, &mut text)?;
                out.write_str(&text)?;
            }
        }
        Ok(())
    });
    env.add_filter(
        "tojson",
        |state: &State, value: &Value, args: minijinja::value::Rest<Value>| {
            tojson(state, value, &args)
        },
    );
    env.add_filter("join", join);
    env.add_filter("string", string);
    // Python's idea of the two: strings and mappings are sequences, None is not iterable.
    env.add_test("sequence", |v: &Value| has_items(v));
    env.add_test("iterable", |v: &Value| {
        has_items(v) || v.kind() == ValueKind::Iterable
    });
    env.add_function("raise_exception", raise_exception);
    env
}

/// Collects the output and refuses to grow beyond the limit.
struct Limited {
    bytes: Vec<u8>,
    max: usize,
    hit: bool,
}

impl io::Write for Limited {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.max - self.bytes.len() {
            self.hit = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parse(what: &str, json: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(json).map_err(|e| Failure::Invalid(format!("{what}: {e}")))
}

impl Template {
    fn compile(source: &str) -> Result<Template, String> {
        let mut env = environment();
        env.add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| describe(&e))?;
        Ok(Template { env })
    }

    fn render(&self, job: &Job) -> Result<Vec<u8>, Failure> {
        let mut env = self.env.clone();
        env.set_fuel(Some(job.fuel));
        let mut vars: BTreeMap<String, Value> = BTreeMap::new();
        // As apply_chat_template: present and None when not given.
        vars.insert("documents".into(), Value::from(()));
        if let Some(extra) = &job.extra {
            let extra = parse("template variables", extra)?;
            let names = extra
                .try_iter()
                .map_err(|e| Failure::Invalid(e.to_string()))?;
            for name in names {
                let value = extra.get_item(&name).map_err(|_| Failure::Internal)?;
                vars.insert(name.to_string(), value);
            }
        }
        let now_s = job.now_s;
        let strftime_now = move |format: String| strftime_at(now_s, &format);
        vars.insert("strftime_now".into(), Value::from_function(strftime_now));
        // Last, so that no extra variable replaces one of these.
        vars.insert("messages".into(), parse("messages", &job.messages)?);
        let tools = job.tools.as_ref().map(|t| parse("tools", t)).transpose()?;
        vars.insert("tools".into(), tools.unwrap_or_else(|| Value::from(())));
        vars.insert(
            "add_generation_prompt".into(),
            Value::from(job.add_generation_prompt),
        );
        for (name, spelling) in [("bos_token", &job.bos), ("eos_token", &job.eos)] {
            match spelling {
                Some(s) => vars.insert(name.into(), Value::from(s.as_str())),
                None => vars.remove(name),
            };
        }
        vars.insert(LIMIT_NAME.into(), Value::from(job.max_output_bytes));
        let mut out = Limited {
            bytes: Vec::new(),
            max: job.max_output_bytes,
            hit: false,
        };
        let template = env.get_template(NAME).map_err(|_| Failure::Internal)?;
        let result = template
            .render_captured_to(Value::from(vars), &mut out)
            .map(drop);
        match result {
            Ok(()) => Ok(out.bytes),
            Err(_) if out.hit => Err(Failure::TooLarge(format!(
                "the model's chat template makes a prompt of more than {} bytes",
                job.max_output_bytes
            ))),
            Err(e) => Err(Failure::Invalid(describe(&e))),
        }
    }
}

impl Handle {
    pub fn compile(source: String) -> Result<Handle, Failure> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(Failure::Invalid(format!(
                "the model's chat template has {} bytes, more than {MAX_TEMPLATE_BYTES}",
                source.len()
            )));
        }
        let limits = limits(COMPILE_MEMORY_BYTES, Duration::from_secs(3));
        let template = run_bounded(&limits, move || Template::compile(&source))
            .map_err(stopped)?
            .map_err(Failure::Invalid)?;
        Ok(Handle {
            template: Arc::new(template),
            runaways: AtomicU32::new(0),
        })
    }

    pub fn render(&self, job: Job) -> Result<Vec<u8>, Failure> {
        if self.runaways.load(Ordering::Relaxed) >= MAX_RUNAWAYS {
            return Err(Failure::Invalid(
                "the model's chat template is not used any more: it ran away several times".into(),
            ));
        }
        let input_bytes = job.messages.len()
            + job.tools.as_ref().map_or(0, Vec::len)
            + job.extra.as_ref().map_or(0, Vec::len);
        let limits = limits(
            BASE_MEMORY_BYTES.saturating_add(input_bytes.saturating_mul(24)),
            job.time,
        );
        let template = Arc::clone(&self.template);
        match run_bounded(&limits, move || template.render(&job)) {
            Ok(result) => result,
            Err(why) => {
                if matches!(why, Stopped::OverMemory | Stopped::OverTime) {
                    self.runaways.fetch_add(1, Ordering::Relaxed);
                }
                Err(stopped(why))
            }
        }
    }
}
