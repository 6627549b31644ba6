//! Blocks that nobody holds but whose content is still known, in order of their last use.
//!
//! A doubly linked list inside two arrays, so that joining, leaving and taking the oldest cost the
//! same however many blocks there are.

use forthwith_core::units::BlockId;

#[derive(Debug)]
pub(crate) struct IdleList {
    /// For each block, and for the list itself as the last entry: who comes before.
    before: Vec<usize>,
    after: Vec<usize>,
    length: usize,
}

impl IdleList {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            before: (0..=blocks).collect(),
            after: (0..=blocks).collect(),
            length: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The block that was used longest ago.
    pub(crate) fn oldest(&self) -> Option<BlockId> {
        let first = self.after[self.end()];
        (first != self.end()).then(|| block(first))
    }

    /// Adds a block that was used just now.
    pub(crate) fn push(&mut self, block: BlockId) {
        let (end, at) = (self.end(), block.index());
        let last = self.before[end];
        self.after[last] = at;
        self.before[at] = last;
        self.after[at] = end;
        self.before[end] = at;
        self.length += 1;
    }

    /// Takes out a block that is in the list.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let at = block.index();
        let (before, after) = (self.before[at], self.after[at]);
        self.after[before] = after;
        self.before[after] = before;
        self.length -= 1;
    }

    pub(crate) fn clear(&mut self) {
        let end = self.end();
        self.before[end] = end;
        self.after[end] = end;
        self.length = 0;
    }

    /// All blocks, the one that was used longest ago first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        let end = self.end();
        let next = move |&at: &usize| Some(self.after[at]);
        std::iter::successors(Some(self.after[end]), next)
            .take_while(move |&at| at != end)
            .map(block)
    }

    fn end(&self) -> usize {
        self.after.len() - 1
    }
}

fn block(index: usize) -> BlockId {
    BlockId::new(u32::try_from(index).expect("block ids fit 32 bits"))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_queue_that_can_be_left(moves in prop::collection::vec((0_usize..9, any::<bool>()), 0..80)) {
            let mut list = IdleList::new(9);
            let mut queue: VecDeque<BlockId> = VecDeque::new();
            for (index, clear) in moves {
                let id = block(index);
                if let Some(at) = queue.iter().position(|&other| other == id) {
                    queue.remove(at);
                    list.remove(id);
                } else if clear && index == 0 {
                    queue.clear();
                    list.clear();
                } else {
                    queue.push_back(id);
                    list.push(id);
                }
                prop_assert_eq!(list.len(), queue.len());
                prop_assert_eq!(list.oldest(), queue.front().copied());
                prop_assert_eq!(list.iter().collect::<VecDeque<_>>(), queue.clone());
            }
        }
    }
}
