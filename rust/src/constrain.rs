//! Constrained output by llguidance: a vocabulary, grammars compiled for it, and their state along
//! one answer.
//!
//! Schemas and grammars are a client's: compiling one has a budget of memory and time (budget.rs),
//! and each step along it a budget of fuel (ParserLimits). What a grammar has allocated, while it
//! was compiled and since, is counted, so that a cache of them can be bounded.

use crate::budget::{balance, run_bounded, Limits, Stopped};
use crate::gbnf;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Compiling recurses with the nesting of schemas, expressions and groups, which MAX_NESTING bounds.
const STACK_BYTES: usize = 64 << 20;
const MAX_NESTING: usize = 200;
/// Of regular expressions and grammars, whose compilation is not linear in their length.
const MAX_TEXT_BYTES: usize = 32 << 10;
/// Threads that ran away and are parked for good; with this many, nothing new is compiled.
const MAX_RUNAWAYS: u32 = 8;

static RUNAWAYS: AtomicU32 = AtomicU32::new(0);

pub enum Failure {
    Invalid(String),
    Unavailable(String),
    NoMemory,
    Internal,
}

pub struct Env {
    factory: Arc<ParserFactory>,
}

pub struct Grammar {
    start: Mutex<Matcher>,
    bytes: Arc<AtomicIsize>,
}

pub struct State {
    matcher: Matcher,
    bytes: Arc<AtomicIsize>,
}

#[derive(Clone, Copy)]
pub enum Kind {
    JsonObject,
    JsonSchema,
    Regex,
    Grammar,
    /// Written by this program; what clients put into it is JSON schemas.
    OwnLark,
}

pub struct Budget {
    pub memory_bytes: usize,
    pub time: Duration,
}

impl Env {
    /// tokens: the bytes of each; special ones begin with 0xFF, those that are never drawn are empty.
    pub fn new(tokens: &[Vec<u8>], eos: &[u32]) -> Result<Env, Failure> {
        let Some(&first) = eos.first() else {
            return Err(Failure::Invalid("the vocabulary has no token that ends a text".into()));
        };
        let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, first), tokens)
            .with_eos_tokens(eos);
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let env: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Failure::Invalid(format!("the vocabulary: {e}")))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: 1_000_000,
            step_lexer_fuel: 100_000,
            step_max_items: 30_000,
            max_lexer_states: 30_000,
            max_grammar_size: 200_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Env {
            factory: Arc::new(factory),
        })
    }

    pub fn compile(&self, kind: Kind, text: String, budget: &Budget) -> Result<Grammar, Failure> {
        if RUNAWAYS.load(Ordering::Relaxed) >= MAX_RUNAWAYS {
            return Err(Failure::Unavailable(
                "no new grammars are compiled: too many ran away".into(),
            ));
        }
        let factory = Arc::clone(&self.factory);
        let limits = Limits {
            memory_bytes: budget.memory_bytes,
            stack_bytes: STACK_BYTES,
            time: budget.time,
        };
        let work = move || {
            let before = balance();
            let matcher = compile(&factory, kind, &text);
            (matcher, before - balance())
        };
        match run_bounded(&limits, work) {
            Ok((Ok(matcher), bytes)) => Ok(Grammar {
                start: Mutex::new(matcher),
                bytes: Arc::new(AtomicIsize::new(bytes)),
            }),
            Ok((Err(text), _)) => Err(Failure::Invalid(text)),
            Err(Stopped::NoThread) => Err(Failure::NoMemory),
            Err(Stopped::Panicked) => Err(Failure::Internal),
            Err(Stopped::OverMemory) => {
                RUNAWAYS.fetch_add(1, Ordering::Relaxed);
                Err(Failure::Invalid("it needs too much memory".into()))
            }
            Err(Stopped::OverTime) => {
                RUNAWAYS.fetch_add(1, Ordering::Relaxed);
                Err(Failure::Invalid("it takes too long to compile".into()))
            }
        }
    }
}

fn compile(factory: &ParserFactory, kind: Kind, text: &str) -> Result<Matcher, String> {
    let grammar = match kind {
        Kind::JsonObject => TopLevelGrammar::from_json_schema(with_spaces(json!({"type": "object"}))),
        Kind::JsonSchema => {
            let schema: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
            TopLevelGrammar::from_json_schema(with_spaces(schema))
        }
        Kind::Regex => {
            check_text(text)?;
            TopLevelGrammar::from_regex(text)
        }
        Kind::Grammar => {
            check_text(text)?;
            TopLevelGrammar::from_lark(gbnf::to_lark(text)?.unwrap_or_else(|| text.to_string()))
        }
        Kind::OwnLark => TopLevelGrammar::from_lark(text.to_string()),
    };
    let parser = factory.create_parser(grammar).map_err(first_lines)?;
    let mut matcher = Matcher::new(Ok(parser));
    // Works out the first mask, and fails here where the first step would.
    matcher.compute_mask_or_eos().map_err(first_lines)?;
    Ok(matcher)
}

/// JSON may be laid out freely, but not with white space without end.
fn with_spaces(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema,
        // true and false
        other => json!({ "allOf": [other] }),
    };
    if let Some(members) = schema.as_object_mut() {
        members.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": true, "whitespace_pattern": "[ \\n\\r\\t]{0,24}"}),
        );
    }
    schema
}

/// Counts every kind of bracket, also those inside of strings: none of them nests this deep.
fn check_text(text: &str) -> Result<(), String> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(format!("it has more than {MAX_TEXT_BYTES} bytes"));
    }
    let mut depth = 0usize;
    for c in text.bytes() {
        match c {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(format!("it is nested more than {MAX_NESTING} levels deep"));
        }
    }
    Ok(())
}

fn first_lines(e: impl std::fmt::Display) -> String {
    let text = e.to_string();
    text.lines().take(3).collect::<Vec<_>>().join(" ")
}

impl Grammar {
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed).max(0) as usize
    }

    /// The state before the first token. What the lexer learns is shared by all states.
    pub fn start(&self) -> State {
        let matcher = self.start.lock().unwrap_or_else(PoisonError::into_inner).clone();
        State {
            matcher,
            bytes: Arc::clone(&self.bytes),
        }
    }
}

impl State {
    fn counted<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        let before = balance();
        let result = work(&mut self.matcher);
        self.bytes.fetch_add(before - balance(), Ordering::Relaxed);
        result
    }

    pub fn advance(&mut self, token: u32) -> Result<(), Failure> {
        self.counted(|m| {
            if m.is_stopped() {
                return Err(Failure::Invalid("the answer is complete".into()));
            }
            m.consume_token(token).map_err(|e| Failure::Invalid(first_lines(e)))
        })
    }

    /// One bit per token that may come next; only those that end the text once it is complete.
    pub fn mask(&mut self, out: &mut [u32]) -> Result<(), Failure> {
        self.counted(|m| {
            let mask = m
                .compute_mask_or_eos()
                .map_err(|e| Failure::Invalid(first_lines(e)))?;
            let words = mask.as_slice();
            let n = out.len().min(words.len());
            out[..n].copy_from_slice(&words[..n]);
            out[n..].fill(0);
            Ok(())
        })
    }
}
