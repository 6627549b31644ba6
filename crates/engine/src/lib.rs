//! Scheduler, paged KV cache, sampler: the product.
