//! Python's spelling of values: str(), repr() and json.dumps(), which chat templates depend on.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write;

/// Python gives up at about a thousand levels; messages are at most 64 deep when they come in.
const MAX_DEPTH: usize = 256;

/// The character that src/tokenizer puts into user text that spells a control token. It is never
/// escaped, so that it stays one character whatever the template prints.
const GUARD: char = '\u{FDD0}';

fn too_deep() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "a value is nested too deeply to print",
    )
}

/// float.__repr__: shortest digits; an exponent has a sign and at least two digits.
fn float_repr(v: f64, out: &mut String) {
    if v.is_nan() {
        out.push_str("nan");
        return;
    }
    if v.is_infinite() {
        out.push_str(if v < 0.0 { "-inf" } else { "inf" });
        return;
    }
    // Rust's Debug switches to an exponent at the same magnitudes as Python does.
    let text = format!("{v:?}");
    match text.split_once('e') {
        None => out.push_str(&text),
        Some((digits, exp)) => {
            let (sign, exp) = match exp.strip_prefix('-') {
                Some(e) => ('-', e),
                None => ('+', exp),
            };
            let _ = write!(out, "{digits}e{sign}{exp:0>2}");
        }
    }
}

fn is_float(v: &Value) -> Option<f64> {
    if v.kind() == ValueKind::Number && !v.is_integer() {
        f64::try_from(v.clone()).ok()
    } else {
        None
    }
}

fn string_repr(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// str(value), as `{{ value }}` prints it; undefined prints nothing.
pub fn py_str(v: &Value, out: &mut String) -> Result<(), Error> {
    match v.as_str() {
        Some(s) => {
            out.push_str(s);
            Ok(())
        }
        None => py_repr(v, out, 0),
    }
}

fn py_repr(v: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if let Some(s) = v.as_str() {
        string_repr(s, out);
        return Ok(());
    }
    if let Some(f) = is_float(v) {
        float_repr(f, out);
        return Ok(());
    }
    match v.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in v.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                py_repr(&item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in v.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                py_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                py_repr(&v.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{v}");
        }
    }
    Ok(())
}

/// The arguments of json.dumps that templates use.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl JsonStyle {
    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }
}

fn json_string(s: &str, style: &JsonStyle, out: &mut String) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if style.ensure_ascii && !c.is_ascii() && c != GUARD => {
                let mut units = [0u16; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// What json.dumps makes of a number, boolean or None; None for other kinds.
fn json_scalar(v: &Value) -> Option<String> {
    if let Some(f) = is_float(v) {
        let mut text = String::new();
        match f {
            f if f.is_nan() => text.push_str("NaN"),
            f if f.is_infinite() => text.push_str(if f < 0.0 { "-Infinity" } else { "Infinity" }),
            f => float_repr(f, &mut text),
        }
        return Some(text);
    }
    match v.kind() {
        ValueKind::None => Some("null".into()),
        ValueKind::Bool => Some(if v.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Some(v.to_string()),
        _ => None,
    }
}

/// json.dumps(value), appended to out, which may not grow beyond max_bytes: an indent makes a
/// deeply nested value much larger than it was.
pub fn json_dumps(
    v: &Value,
    style: &JsonStyle,
    max_bytes: usize,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if out.len() > max_bytes {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson makes more text than a prompt may have",
        ));
    }
    if let Some(s) = v.as_str() {
        json_string(s, style, out);
        return Ok(());
    }
    if let Some(text) = json_scalar(v) {
        out.push_str(&text);
        return Ok(());
    }
    let is_map = match v.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => false,
        kind => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{kind} value has no JSON form"),
            ))
        }
    };
    let mut items: Vec<Value> = v.try_iter()?.collect();
    if is_map && style.sort_keys {
        items.sort();
    }
    out.push(if is_map { '{' } else { '[' });
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        style.new_line(depth + 1, out);
        if is_map {
            match item
                .as_str()
                .map(str::to_owned)
                .or_else(|| json_scalar(item))
            {
                Some(key) => json_string(&key, style, out),
                None => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "key has no JSON form",
                    ))
                }
            }
            out.push_str(&style.key_separator);
            json_dumps(&v.get_item(item)?, style, max_bytes, depth + 1, out)?;
        } else {
            json_dumps(item, style, max_bytes, depth + 1, out)?;
        }
    }
    if !items.is_empty() {
        style.new_line(depth, out);
    }
    out.push(if is_map { '}' } else { ']' });
    Ok(())
}
