//! GBNF, the grammar notation of llama.cpp, as Lark: rules `name ::= ...` with strings, character
//! classes, `.`, groups, `|`, `*`, `+`, `?`, `{m,n}` and `#` comments.

use std::collections::HashMap;
use std::fmt::Write;

/// None: the text has no rule `root ::=`, so it is something else.
pub fn to_lark(text: &str) -> Result<Option<String>, String> {
    let is_gbnf = text.lines().any(|l| {
        l.trim_start()
            .strip_prefix("root")
            .is_some_and(|rest| rest.trim_start().starts_with("::="))
    });
    if !is_gbnf {
        return Ok(None);
    }
    let mut reader = Reader {
        chars: text.chars().collect(),
        at: 0,
        names: HashMap::new(),
    };
    reader.grammar().map(Some)
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    names: HashMap<String, String>,
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek();
        self.at += usize::from(c.is_some());
        c
    }

    fn fail<T>(&self, what: &str) -> Result<T, String> {
        let line = 1 + self.chars[..self.at.min(self.chars.len())]
            .iter()
            .filter(|&&c| c == '\n')
            .count();
        Err(format!("line {line}: {what}"))
    }

    fn skip(&mut self, newlines: bool) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else if c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r')) {
                self.at += 1;
            } else {
                break;
            }
        }
    }

    fn name(&mut self) -> String {
        let from = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        self.chars[from..self.at].iter().collect()
    }

    /// Lark's rules are lower case without dashes; each name gets one of its own.
    fn rule(&mut self, name: &str) -> String {
        if name == "root" {
            return "start".into();
        }
        let n = self.names.len();
        self.names
            .entry(name.to_string())
            .or_insert_with(|| format!("r{n}"))
            .clone()
    }

    fn at_rule(&mut self) -> bool {
        let from = self.at;
        let named = !self.name().is_empty();
        self.skip(false);
        let found = named && self.chars[self.at..].starts_with(&[':', ':', '=']);
        self.at = from;
        found
    }

    fn grammar(&mut self) -> Result<String, String> {
        let mut out = String::new();
        self.skip(true);
        while self.peek().is_some() {
            if !self.at_rule() {
                return self.fail("a rule 'name ::= ...' was expected");
            }
            let name = self.name();
            let rule = self.rule(&name);
            self.skip(false);
            self.at += 3;
            let body = self.alternatives(false)?;
            let _ = writeln!(out, "{rule}: {body}");
            self.skip(true);
        }
        Ok(out)
    }

    fn alternatives(&mut self, grouped: bool) -> Result<String, String> {
        let mut all = vec![self.sequence(grouped)?];
        while self.peek() == Some('|') {
            self.at += 1;
            all.push(self.sequence(grouped)?);
        }
        Ok(all.join(" | "))
    }

    fn sequence(&mut self, grouped: bool) -> Result<String, String> {
        let mut items: Vec<String> = vec![];
        // An alternative may go on in the next line.
        self.skip(true);
        loop {
            self.skip(grouped);
            // At the top, a line's end ends the rule, unless the next one goes on with it.
            if !grouped && matches!(self.peek(), Some('\n' | '\r')) {
                let from = self.at;
                self.skip(true);
                if self.peek() != Some('|') {
                    self.at = from;
                }
                break;
            }
            match self.peek() {
                None | Some('|') => break,
                Some(')') if grouped => break,
                _ if !grouped && self.at_rule() => break,
                _ => {
                    let item = self.item()?;
                    let repeat = self.repeat()?;
                    items.push(item + &repeat);
                }
            }
        }
        Ok(if items.is_empty() {
            "\"\"".into()
        } else {
            items.join(" ")
        })
    }

    fn item(&mut self) -> Result<String, String> {
        match self.peek() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok("/(?s:.)/".into())
            }
            Some('(') => {
                self.at += 1;
                let inner = self.alternatives(true)?;
                if self.next() != Some(')') {
                    return self.fail("a group is not closed");
                }
                Ok(format!("({inner})"))
            }
            Some(c) if is_name(c) => {
                let name = self.name();
                Ok(self.rule(&name))
            }
            _ => self.fail("unexpected character"),
        }
    }

    fn repeat(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.at += 1;
                Ok(c.to_string())
            }
            Some('{') => {
                let from = self.at;
                while let Some(c) = self.next() {
                    if c == '}' {
                        return Ok(self.chars[from..self.at].iter().collect());
                    }
                    if !c.is_ascii_digit() && c != ',' && c != '{' {
                        break;
                    }
                }
                self.fail("a repetition is {m}, {m,} or {m,n}")
            }
            _ => Ok(String::new()),
        }
    }

    /// The character that an escape stands for.
    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return self.fail("unknown escape"),
        };
        let mut code = 0u32;
        for _ in 0..digits {
            match self.next().and_then(|c| c.to_digit(16)) {
                Some(d) => code = (code << 4) | d,
                None => return self.fail("unknown escape"),
            }
        }
        char::from_u32(code).map_or_else(|| self.fail("no such character"), Ok)
    }

    fn literal(&mut self) -> Result<String, String> {
        let mut text = String::new();
        self.at += 1;
        loop {
            match self.next() {
                None | Some('\n') => return self.fail("a string is not closed"),
                Some('"') => return Ok(serde_json::Value::String(text).to_string()),
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<String, String> {
        let mut out = String::from("/[");
        self.at += 1;
        if self.peek() == Some('^') {
            self.at += 1;
            out.push('^');
        }
        let mut empty = true;
        loop {
            let c = match self.next() {
                None | Some('\n') => return self.fail("a character class is not closed"),
                Some(']') if !empty => break,
                Some(']') => return self.fail("a character class is empty"),
                Some('-') if !empty && self.peek() != Some(']') => {
                    out.push('-');
                    continue;
                }
                Some('\\') => self.escaped()?,
                Some(c) => c,
            };
            empty = false;
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        }
        out.push_str("]/");
        Ok(out)
    }
}
