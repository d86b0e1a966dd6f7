//! Scaled-dot-product attention and its gradient, from their definition.
//!
//! A query that may look at nothing gets zeros, and gives none back.

use manyhands_program::{AttentionSpec, TensorType};

use super::element::{Float, Truth, total};
use super::memory::Call;

/// The doubles of scratch memory that the forward pass needs: the shares of one query.
pub(super) fn n_forward_scratch(operand_types: &[&TensorType]) -> usize {
    operand_types[1].shape[1]
}

/// The doubles that the gradient needs: for each query and key of one head the share, and the
/// gradient of the score.
pub(super) fn n_backward_scratch(operand_types: &[&TensorType]) -> usize {
    2 * operand_types[0].shape[1] * operand_types[1].shape[1]
}

/// The operands of attention, and where to look in them.
struct Heads<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    mask: &'a [Truth],
    mask_has_batch: bool,
    spec: &'a AttentionSpec,
    n_batches: usize,
    n_queries: usize,
    n_keys: usize,
    width: usize,
}

impl<'a, T: Float> Heads<'a, T> {
    fn new(spec: &'a AttentionSpec, call: &Call<'a>) -> Self {
        let (q_sizes, k_sizes) = (call.sizes(0), call.sizes(1));
        Heads {
            q: call.operand(0),
            k: call.operand(1),
            v: call.operand(2),
            mask: if spec.masked { call.operand(3) } else { &[] },
            mask_has_batch: spec.masked && call.sizes(3).len() == 3,
            spec,
            n_batches: q_sizes[0],
            n_queries: q_sizes[1],
            n_keys: k_sizes[1],
            width: q_sizes[2],
        }
    }

    /// Elements per head.
    fn depth(&self) -> usize {
        self.width / self.spec.heads
    }

    fn query_at(&self, batch: usize, query: usize, head: usize) -> usize {
        (batch * self.n_queries + query) * self.width + head * self.depth()
    }

    fn key_at(&self, batch: usize, key: usize, head: usize) -> usize {
        (batch * self.n_keys + key) * self.width + head * self.depth()
    }

    fn may_look(&self, batch: usize, query: usize, key: usize) -> bool {
        let batch = if self.mask_has_batch { batch } else { 0 };
        let at = (batch * self.n_queries + query) * self.n_keys + key;
        (!self.spec.causal || key + self.n_queries <= query + self.n_keys)
            && (!self.spec.masked || self.mask[at].holds())
    }

    /// The inner product over one head.
    fn dot(&self, a: &[T], b: &[T]) -> f64 {
        total(a.iter().zip(b).take(self.depth()).map(|(a, b)| a.wide() * b.wide()))
    }

    /// The shares that one query gives to the keys.
    fn shares(&self, batch: usize, head: usize, query: usize, shares: &mut [f64]) {
        let q = &self.q[self.query_at(batch, query, head)..];
        for (key, share) in shares.iter_mut().enumerate() {
            let k = &self.k[self.key_at(batch, key, head)..];
            *share = if self.may_look(batch, query, key) {
                self.dot(q, k) * self.spec.scale
            } else {
                f64::NEG_INFINITY
            };
        }
        let largest = shares.iter().fold(f64::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if largest == f64::NEG_INFINITY && shares.iter().all(|share| !share.is_nan()) {
            shares.fill(0.0);
            return;
        }
        shares.iter_mut().for_each(|share| *share = libm::exp(*share - largest));
        let sum = total(shares.iter().copied());
        shares.iter_mut().for_each(|share| *share /= sum);
    }

    /// Every batch with every head.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let heads = self.spec.heads;
        (0..self.n_batches * heads).map(move |i| (i / heads, i % heads))
    }
}

pub(super) fn forward<T: Float>(spec: &AttentionSpec, call: &mut Call<'_>) {
    let h = Heads::<T>::new(spec, call);
    let shares = call.take_scratch(h.n_keys);
    let y = call.result::<T>(0);
    for (batch, head) in h.pairs() {
        for query in 0..h.n_queries {
            h.shares(batch, head, query, shares);
            for i in 0..h.depth() {
                let term = |(key, share): (usize, &f64)| {
                    // Without a share a value must not matter, were it infinite or NaN.
                    let v = h.v[h.key_at(batch, key, head) + i].wide();
                    if *share == 0.0 { 0.0 } else { share * v }
                };
                let sum = total(shares.iter().enumerate().map(term));
                y.set(h.query_at(batch, query, head) + i, T::narrow(sum));
            }
        }
    }
}

pub(super) fn backward<T: Float>(spec: &AttentionSpec, call: &mut Call<'_>) {
    let h = Heads::<T>::new(spec, call);
    let dy = call.operand::<T>(3 + usize::from(spec.masked));
    let (n_queries, n_keys, scale) = (h.n_queries, h.n_keys, spec.scale);
    let (shares, dscores) =
        call.take_scratch(2 * n_queries * n_keys).split_at_mut(n_queries * n_keys);
    let [dq, dk, dv] = [0, 1, 2].map(|idx| call.result::<T>(idx));
    for (batch, head) in h.pairs() {
        for query in 0..n_queries {
            let row = query * n_keys..(query + 1) * n_keys;
            let (shares, dscores) = (&mut shares[row.clone()], &mut dscores[row]);
            h.shares(batch, head, query, shares);
            let dy = &dy[h.query_at(batch, query, head)..];
            for (key, dscore) in dscores.iter_mut().enumerate() {
                *dscore = h.dot(dy, &h.v[h.key_at(batch, key, head)..]);
            }
            let mean = total(shares.iter().zip(&*dscores).map(|(share, dshare)| share * dshare));
            for (dscore, share) in dscores.iter_mut().zip(&*shares) {
                *dscore = share * (*dscore - mean) * scale;
            }
        }
        for i in 0..h.depth() {
            for query in 0..n_queries {
                let term = |key: usize| {
                    dscores[query * n_keys + key] * h.k[h.key_at(batch, key, head) + i].wide()
                };
                dq.set(h.query_at(batch, query, head) + i, T::narrow(total((0..n_keys).map(term))));
            }
            for key in 0..n_keys {
                let over_queries = |factor: &[f64], rows: &[T]| {
                    T::narrow(total((0..n_queries).map(|query| {
                        factor[query * n_keys + key]
                            * rows[h.query_at(batch, query, head) + i].wide()
                    })))
                };
                let at = h.key_at(batch, key, head) + i;
                dk.set(at, over_queries(dscores, h.q));
                dv.set(at, over_queries(shares, dy));
            }
        }
    }
}
