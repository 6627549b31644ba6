//! Answers in parts: free text up to a marker, and only then a form; or one part or the other from the
//! first token on.

use std::sync::Arc;

use forthwith_core::constraint::{Constraint, ConstraintError, Next, TokenConstraint};
use forthwith_core::units::TokenId;

use super::marker::Marker;
use crate::tokenizer::Tokenizer;

/// White space that may stand between a marker and a form, in bytes.
const MAX_SPACE: usize = 8;

/// Free text, a marker, and what comes after it.
#[derive(Debug)]
pub(super) struct After {
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) marker: Arc<Marker>,
    /// Whether the marker counts only where the answer begins.
    pub(super) at_start: bool,
    /// So many tokens of free text may come; then the marker must.
    pub(super) budget: Option<usize>,
    /// Whether white space may stand before what comes after, which must come.
    pub(super) leads: bool,
    pub(super) then: Option<Arc<dyn Constraint>>,
}

/// What begins with one token, or what comes otherwise.
#[derive(Debug)]
pub(super) struct Either {
    pub(super) token: TokenId,
    pub(super) begun: Arc<dyn Constraint>,
    pub(super) otherwise: Option<Arc<dyn Constraint>>,
}

enum Place {
    /// Before the marker, so many bytes of which have come.
    Free(usize),
    /// The marker can come no more.
    Past,
    /// After the marker; so many more bytes of white space may come.
    Space(usize, Box<dyn TokenConstraint>),
    Then(Box<dyn TokenConstraint>),
}

struct Following {
    after: Arc<Marker>,
    tokenizer: Arc<Tokenizer>,
    at_start: bool,
    leads: bool,
    budget: Option<usize>,
    then: Option<Arc<dyn Constraint>>,
    spent: usize,
    place: Place,
}

impl Constraint for After {
    fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError> {
        Ok(Box::new(Following {
            after: Arc::clone(&self.marker),
            tokenizer: Arc::clone(&self.tokenizer),
            at_start: self.at_start,
            leads: self.leads,
            budget: self.budget,
            then: self.then.clone(),
            spent: 0,
            place: Place::Free(0),
        }))
    }
}

fn clear(allowed: &mut [u64], id: TokenId) {
    if let Some(word) = allowed.get_mut(id.index() / 64) {
        *word &= !(1 << (id.index() % 64));
    }
}

fn set(allowed: &mut [u64], id: TokenId) {
    if let Some(word) = allowed.get_mut(id.index() / 64) {
        *word |= 1 << (id.index() % 64);
    }
}

fn is_set(allowed: &[u64], id: TokenId) -> bool {
    let word = allowed.get(id.index() / 64);
    word.is_some_and(|word| word >> (id.index() % 64) & 1 == 1)
}

impl TokenConstraint for Following {
    fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError> {
        match &mut self.place {
            Place::Past => Ok(()),
            Place::Then(then) => then.restrict(allowed),
            Place::Space(room, then) => {
                let spaces = spaces(&self.tokenizer, *room, allowed);
                then.restrict(allowed)?;
                for id in spaces {
                    set(allowed, id);
                }
                Ok(())
            }
            Place::Free(matched) => {
                if self.budget.is_some_and(|budget| self.spent >= budget) {
                    allowed.fill(0);
                    self.after
                        .going_on(*matched)
                        .for_each(|id| set(allowed, id));
                } else if self.then.is_some() {
                    self.after
                        .too_long(*matched)
                        .for_each(|id| clear(allowed, id));
                    if self.leads {
                        let ends = self.tokenizer.end_tokens().iter();
                        ends.for_each(|&id| clear(allowed, id));
                    }
                }
                Ok(())
            }
        }
    }

    fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError> {
        let bytes = self.tokenizer.token_bytes(token);
        match &mut self.place {
            Place::Past => Ok(Next::Open),
            Place::Then(then) => then.advance(token),
            Place::Space(room, then) => {
                let mut allowed = vec![u64::MAX; token.index() / 64 + 1];
                then.restrict(&mut allowed)?;
                if !is_set(&allowed, token) && is_space(bytes, *room) {
                    *room -= bytes.len();
                    return Ok(Next::Open);
                }
                let next = then.advance(token)?;
                self.place = match std::mem::replace(&mut self.place, Place::Past) {
                    Place::Space(_, then) => Place::Then(then),
                    other => other,
                };
                Ok(next)
            }
            Place::Free(matched) => {
                self.spent += 1;
                let before = *matched;
                let (now, rest) = self.after.advance(before, bytes);
                *matched = now;
                if now == self.after.len() {
                    return self.pass(rest);
                }
                if self.at_start && now < before + bytes.len() {
                    self.place = Place::Past;
                }
                Ok(Next::Open)
            }
        }
    }
}

impl Following {
    /// The marker has come.
    fn pass(&mut self, rest: usize) -> Result<Next, ConstraintError> {
        self.place = match &self.then {
            None => Place::Past,
            Some(_) if rest > 0 => {
                let message = "a token goes beyond the marker before the form";
                return Err(ConstraintError(message.to_owned()));
            }
            Some(then) if self.leads => Place::Space(MAX_SPACE, then.start()?),
            Some(then) => Place::Then(then.start()?),
        };
        Ok(Next::Open)
    }
}

fn is_space(bytes: &[u8], room: usize) -> bool {
    let is_white = |byte: &u8| b" \n\r\t".contains(byte);
    !bytes.is_empty() && bytes.len() <= room && bytes.iter().all(is_white)
}

/// The tokens of white space that are possible and have room.
fn spaces(tokenizer: &Tokenizer, room: usize, allowed: &[u64]) -> Vec<TokenId> {
    let count = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let tokens = (0..count).map(TokenId::new);
    tokens
        .filter(|&id| is_space(tokenizer.token_bytes(id), room) && is_set(allowed, id))
        .collect()
}

enum Branch {
    Undecided(Option<Box<dyn TokenConstraint>>),
    Taken(Option<Box<dyn TokenConstraint>>),
}

struct Deciding {
    token: TokenId,
    begun: Arc<dyn Constraint>,
    branch: Branch,
}

impl Constraint for Either {
    fn start(&self) -> Result<Box<dyn TokenConstraint>, ConstraintError> {
        let otherwise = self.otherwise.as_ref().map(|form| form.start());
        Ok(Box::new(Deciding {
            token: self.token,
            begun: Arc::clone(&self.begun),
            branch: Branch::Undecided(otherwise.transpose()?),
        }))
    }
}

impl TokenConstraint for Deciding {
    fn restrict(&mut self, allowed: &mut [u64]) -> Result<(), ConstraintError> {
        match &mut self.branch {
            Branch::Undecided(otherwise) => {
                let possible = is_set(allowed, self.token);
                if let Some(otherwise) = otherwise {
                    otherwise.restrict(allowed)?;
                }
                if possible {
                    set(allowed, self.token);
                }
                Ok(())
            }
            Branch::Taken(Some(taken)) => taken.restrict(allowed),
            Branch::Taken(None) => Ok(()),
        }
    }

    fn advance(&mut self, token: TokenId) -> Result<Next, ConstraintError> {
        match &mut self.branch {
            Branch::Undecided(_) if token == self.token => {
                self.branch = Branch::Taken(Some(self.begun.start()?));
                Ok(Next::Open)
            }
            Branch::Undecided(otherwise) => {
                self.branch = Branch::Taken(otherwise.take());
                self.advance(token)
            }
            Branch::Taken(Some(taken)) => taken.advance(token),
            Branch::Taken(None) => Ok(Next::Open),
        }
    }
}
