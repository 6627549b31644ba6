//! The rows of a step, shared out among the executor's threads, which have nothing to do meanwhile.
//!
//! Each thread takes some rows; where rows are fewer than half of the threads, all threads share each
//! row. Neither changes anything: a choice depends on its row, request and position.

use std::sync::{Mutex, PoisonError};

use forthwith_core::executor::{Executor, StepError};
use forthwith_core::request::GenerationRequest;
use forthwith_core::units::TokenId;

use super::scan::{Alone, Lent, worthwhile};
use super::{Choice, SampleError, Sampler};
use crate::guide::Guide;

/// What a token is chosen from.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) request: &'a GenerationRequest,
    /// Prompt and answer so far.
    pub(crate) tokens: &'a [TokenId],
    /// Which tokens may come next, if not all may.
    pub(crate) guide: Option<&'a Guide>,
    /// The bound of mirostat.
    pub(crate) bound: f64,
    /// The token that is asked about, if none is to be chosen.
    pub(crate) scored: Option<TokenId>,
}

/// One sampler for each thread; keeps its buffers.
pub(crate) struct SharedSampler {
    members: Vec<Mutex<Member>>,
    /// How many threads share a row that is alone.
    crew: usize,
    rows: Vec<Row<'static>>,
}

struct Member {
    sampler: Sampler,
    choices: Vec<Result<Choice, SampleError>>,
}

impl SharedSampler {
    /// For the threads of an executor, and steps of so many rows.
    pub(crate) fn new(executor: &dyn Executor, rows: usize) -> Self {
        let (threads, vocab) = (executor.threads().max(1), executor.vocab());
        let crew = worthwhile(vocab, threads);
        // The first one also walks rows that all share.
        let member = |index| {
            let sharing = if index == 0 { crew } else { 1 };
            Mutex::new(Member {
                sampler: Sampler::new(vocab, sharing, executor.row_passes()),
                choices: Vec::with_capacity(rows),
            })
        };
        Self {
            members: (0..threads).map(member).collect(),
            crew,
            rows: Vec::with_capacity(rows),
        }
    }

    /// Chooses a token for each row, in their order.
    pub(crate) fn choose<'a>(
        &mut self,
        rows: impl Iterator<Item = Row<'a>>,
        executor: &mut dyn Executor,
        choices: &mut Vec<Result<Choice, SampleError>>,
    ) -> Result<(), StepError> {
        choices.clear();
        let mut kept: Vec<Row<'a>> = std::mem::take(&mut self.rows);
        kept.extend(rows);
        let outcome = if self.crew > 1 && 2 * kept.len() <= self.members.len() {
            self.share_each(&kept, executor)
        } else {
            self.share_out(&kept, executor)
        };
        kept.clear();
        // Collecting nothing keeps the buffer and sheds the borrow.
        self.rows = kept.into_iter().map(|_| unreachable!()).collect();
        outcome?;
        for member in &mut self.members {
            let member = member.get_mut().unwrap_or_else(PoisonError::into_inner);
            choices.append(&mut member.choices);
        }
        Ok(())
    }

    /// Row after row, each on all threads.
    fn share_each(
        &mut self,
        rows: &[Row<'_>],
        executor: &mut dyn Executor,
    ) -> Result<(), StepError> {
        let members = self.members.iter_mut();
        let mut members =
            members.map(|member| member.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Member { sampler, choices } = members.next().expect("there is always one");
        members.for_each(|other| other.choices.clear());
        choices.clear();
        for row in rows {
            let choice = sampler.answer(row, &mut Lent(executor));
            if let Err(SampleError::Step(error)) = choice {
                return Err(error);
            }
            choices.push(choice);
        }
        Ok(())
    }

    /// To each thread some rows.
    fn share_out(&self, rows: &[Row<'_>], executor: &mut dyn Executor) -> Result<(), StepError> {
        let count = self.members.len();
        let choose_some = |index: usize| {
            let mut member = self.members[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let Member { sampler, choices } = &mut *member;
            choices.clear();
            // Whole stretches, so that the members' choices one after the other are in order.
            for row in &rows[rows.len() * index / count..rows.len() * (index + 1) / count] {
                choices.push(sampler.answer(row, &mut Alone));
            }
        };
        if rows.len() > 1 && count > 1 {
            return executor.lend_threads(&choose_some);
        }
        for index in 0..count {
            choose_some(index);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forthwith_core::executor::{KvGeometry, StepInput};
    use forthwith_core::request::{Limits, RequestParts, SamplingParams};
    use forthwith_core::units::{BlockId, Tokens};

    use super::*;

    /// Has nothing but threads, and loses one of them if told to.
    struct Threads {
        vocab: usize,
        count: usize,
        broken: bool,
    }

    impl Executor for Threads {
        fn vocab(&self) -> usize {
            self.vocab
        }
        fn kv_geometry(&self) -> KvGeometry {
            unreachable!("no model")
        }
        fn max_step_tokens(&self) -> Tokens {
            unreachable!("no model")
        }
        fn step(&mut self, _: &StepInput<'_>, _: &mut Vec<f32>) -> Result<(), StepError> {
            unreachable!("no model")
        }
        fn copy_block(&mut self, _: BlockId, _: BlockId) {}
        fn threads(&self) -> usize {
            self.count
        }
        fn lend_threads(&mut self, work: &(dyn Fn(usize) + Sync)) -> Result<(), StepError> {
            std::thread::scope(|scope| {
                for index in (0..self.count).rev() {
                    scope.spawn(move || work(index));
                }
            });
            if self.broken {
                return Err(StepError::Worker("a thread broke".to_owned()));
            }
            Ok(())
        }
    }

    fn request() -> GenerationRequest {
        let parts = RequestParts {
            sampling: SamplingParams::greedy(),
            ..RequestParts::new(vec![TokenId::new(1)])
        };
        let limits = Limits {
            vocab: 4,
            context: Tokens::new(8),
        };
        GenerationRequest::new(parts, limits).unwrap()
    }

    /// The choices for rows whose likeliest tokens are `best`.
    fn chosen(
        sampler: &mut SharedSampler,
        executor: &mut Threads,
        best: &[u32],
    ) -> Result<Vec<u32>, StepError> {
        let request = request();
        let mut logits = vec![vec![0.0; executor.vocab]; best.len()];
        for (logits, &best) in logits.iter_mut().zip(best) {
            logits[best as usize] = 1.0;
        }
        let rows = logits.iter().map(|logits| Row {
            logits,
            request: &request,
            tokens: request.prompt(),
            guide: None,
            bound: 0.0,
            scored: None,
        });
        let mut choices = Vec::new();
        sampler.choose(rows, executor, &mut choices)?;
        Ok(choices
            .into_iter()
            .map(|choice| choice.unwrap().token.get())
            .collect())
    }

    #[test]
    fn choices_come_in_the_order_of_their_rows() {
        // So large a vocabulary that threads share a row.
        for vocab in [4, 70_000] {
            for count in 1..6 {
                let mut executor = Threads {
                    vocab,
                    count,
                    broken: false,
                };
                let mut sampler = SharedSampler::new(&executor, 8);
                for best in [&[][..], &[2], &[3, 0], &[0, 1, 2, 3, 2, 1, 0, 3]] {
                    assert_eq!(chosen(&mut sampler, &mut executor, best).unwrap(), best);
                }
            }
        }
    }

    #[test]
    fn a_broken_step_leaves_no_choices_behind() {
        for (vocab, best) in [(4, &[1, 2, 3][..]), (70_000, &[1])] {
            let mut executor = Threads {
                vocab,
                count: 3,
                broken: true,
            };
            let mut sampler = SharedSampler::new(&executor, 8);
            assert!(chosen(&mut sampler, &mut executor, best).is_err());
            executor.broken = false;
            assert_eq!(
                chosen(&mut sampler, &mut executor, &[3, 3]).unwrap(),
                [3, 3]
            );
        }
    }
}
