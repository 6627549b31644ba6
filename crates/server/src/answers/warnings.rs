//! What the reader of an answer should know.

use forthwith_core::request::Scheduling;

use super::Choice;

impl Choice {
    /// What is to be said of the prompt, then of the answer.
    pub(super) fn warnings(&self) -> Vec<String> {
        let of_prompt = self.prompt_warning.clone();
        of_prompt.into_iter().chain(self.warning()).collect()
    }

    pub(super) fn did_not_begin(&self) -> String {
        let Scheduling {
            max_queue_time,
            max_time,
            ..
        } = self.scheduling;
        match (max_queue_time, max_time) {
            (Some(queue), time) if time.is_none_or(|time| queue <= time) => {
                let seconds = queue.as_secs_f64();
                format!("the request did not begin within its max_queue_time of {seconds} s")
            }
            (_, time) => {
                let milliseconds = time.unwrap_or_default().as_millis();
                format!("the request did not begin within its max_time_ms of {milliseconds}")
            }
        }
    }

    fn warning(&self) -> Option<String> {
        if self.short {
            let least = self.min_tokens;
            return Some(format!(
                "the answer's form was complete before it had min_tokens of {least}; nothing could follow"
            ));
        }
        let limit = self.scheduling.max_time.filter(|_| self.cut)?;
        let milliseconds = limit.as_millis();
        Some(format!(
            "the answer was cut when its max_time_ms of {milliseconds} was over; allow more time or \
             ask for fewer tokens"
        ))
    }
}
