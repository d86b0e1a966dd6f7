//! Gradients averaged over all ranks while the backward pass still runs, for any optimizer.
//!
//! Gradients are handed over as they become ready. Neighbours share a bucket, and a bucket is reduced in the background as soon as it is full and those before it have
//! been: all ranks reduce the same buckets in the same order, whatever order their gradients come in.
//!
//! **Uneven data.** Every step opens with a tiny all-reduce of how many ranks have a batch. A rank that has run out calls [`Averaged::join`]: from then on it
//! brings zeros that do not count, and takes the same updates as the others, until no rank has a batch. So nobody hangs, the average is over those who brought
//! something, and all end with the same parameters.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::WorldError;
use super::ticket::{Background, Ticket, buckets};
use super::{World, mix};
use crate::collective::{CollectiveError, Compression, Compressor, Element, Group, Reduction};

/// How a bucket becomes the sum over all ranks.
type Sum<T> = Arc<dyn Fn(&mut Group, &mut [T]) -> Result<(), CollectiveError> + Send + Sync>;

/// Averages gradients over all ranks. All ranks must make it alike, and it has links of its own.
///
/// ```
/// # use manyhands_net::world::{Averaged, World};
/// # fn main() -> Result<(), manyhands_net::world::WorldError> {
/// # let world = World::alone()?;
/// let mut weights = vec![1.0f32; 10];
/// let mut averaged = Averaged::new(&world, &[("weights", weights.len())])?;
/// for _ in 0..3 {
///     let gradient = vec![0.5f32; 10]; // from this rank's batch
///     averaged.ready("weights", &gradient)?;
///     averaged.step(|_, average| {
///         weights.iter_mut().zip(average).for_each(|(weight, slope)| *weight -= 0.1 * slope);
///     })?;
/// }
/// averaged.join(|_, _| ())?; // this rank has no more batches
/// # Ok(())
/// # }
/// ```
pub struct Averaged<T: Element> {
    background: Background,
    /// In the order in which they travel: the last that was declared first, as the backward pass has them.
    parameters: Vec<Parameter>,
    places: BTreeMap<String, usize>,
    buckets: Vec<Bucket<T>>,
    /// How many ranks have a batch in this step.
    opened: Option<Ticket<usize>>,
    n_submitted: usize,
    agreement: Option<Ticket<bool>>,
}

struct Parameter {
    name: String,
    bucket: usize,
    /// Where it is in the bucket.
    range: Range<usize>,
    is_ready: bool,
}

struct Bucket<T> {
    parameters: Range<usize>,
    n_ready: usize,
    values: Vec<T>,
    ticket: Option<Ticket<Vec<T>>>,
    sum: Sum<T>,
}

/// What a rank did after it had run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Steps of other ranks that it took part in.
    pub n_steps: usize,
}

impl<T: Element> Averaged<T> {
    /// For parameters of these names and lengths, in the order of the forward pass.
    pub fn new(world: &World, parameters: &[(&str, usize)]) -> Result<Averaged<T>, WorldError> {
        if T::zeroed().divided(1).is_none() {
            let sentence = format!("{} has no average: use floats", T::TYPE.name());
            return Err(WorldError::Misuse(sentence));
        }
        let background = Background::start(Arc::clone(&world.fabric), "averaged");
        let letters = parameters.iter().flat_map(|(name, len)| {
            name.bytes().map(u64::from).chain([u64::MAX, *len as u64]).collect::<Vec<_>>()
        });
        let agreement = background.submit(agree(mix(letters) as i64));
        let lens: Vec<usize> = parameters.iter().rev().map(|(_, len)| *len).collect();
        let mut averaged = Averaged {
            background,
            parameters: Vec::with_capacity(lens.len()),
            places: BTreeMap::new(),
            buckets: Vec::new(),
            opened: None,
            n_submitted: 0,
            agreement: Some(agreement),
        };
        let mut names = parameters.iter().rev();
        for range in buckets::<T>(&lens) {
            averaged.add_bucket(range, &mut names)?;
        }
        Ok(averaged)
    }

    fn add_bucket<'a>(
        &mut self,
        range: Range<usize>,
        names: &mut impl Iterator<Item = &'a (&'a str, usize)>,
    ) -> Result<(), WorldError> {
        let bucket = self.buckets.len();
        let mut end = 0;
        for (name, len) in names.take(range.len()) {
            let place = self.parameters.len();
            if self.places.insert(name.to_string(), place).is_some() {
                let sentence = format!("there are two parameters of the name {name:?}");
                return Err(WorldError::Misuse(sentence));
            }
            let (name, range) = (name.to_string(), end..end + len);
            end = range.end;
            self.parameters.push(Parameter { name, bucket, range, is_ready: false });
        }
        let sum: Sum<T> = Arc::new(|group, values| group.all_reduce(values, Reduction::Sum));
        let values = vec![T::zeroed(); end];
        self.buckets.push(Bucket { parameters: range, n_ready: 0, values, ticket: None, sum });
        Ok(())
    }

    /// Hands over a gradient. The reduction of its bucket begins once all of the bucket are here.
    pub fn ready(&mut self, name: &str, gradient: &[T]) -> Result<(), WorldError> {
        let place = self.places.get(name).copied().ok_or_else(|| {
            WorldError::Misuse(format!("there is no parameter of the name {name:?}"))
        })?;
        let Parameter { range, bucket, is_ready, .. } = &mut self.parameters[place];
        if gradient.len() != range.len() {
            let (n, expected) = (gradient.len(), range.len());
            let sentence = format!("the gradient of {name:?} has {n} elements, not {expected}");
            return Err(WorldError::Misuse(sentence));
        }
        if std::mem::replace(is_ready, true) {
            let sentence = format!("{name:?} has two gradients in one step");
            return Err(WorldError::Misuse(sentence));
        }
        let bucket = &mut self.buckets[*bucket];
        bucket.values[range.clone()].copy_from_slice(gradient);
        bucket.n_ready += 1;
        if self.opened.is_none() {
            self.opened = Some(self.open(true));
        }
        self.submit_full();
        Ok(())
    }

    /// Waits for all averages and hands each to `apply`, in no promised order. Says how many ranks brought something. Where it fails, nothing is applied.
    pub fn step(&mut self, apply: impl FnMut(&str, &[T])) -> Result<usize, WorldError> {
        let missing = self.parameters.iter().find(|parameter| !parameter.is_ready);
        if let Some(Parameter { name, .. }) = missing {
            let sentence = format!("{name:?} has no gradient in this step");
            return Err(WorldError::Misuse(sentence));
        }
        let opened = self.opened.take().unwrap_or_else(|| self.open(true));
        self.check_agreement()?;
        let n_bring = opened.wait()?;
        self.finish(n_bring, apply)?;
        Ok(n_bring)
    }

    /// This rank has no more batches: takes part with nothing, and in all updates, until no rank has one. Then all may go on with the next epoch.
    pub fn join(&mut self, mut apply: impl FnMut(&str, &[T])) -> Result<Joined, WorldError> {
        if self.opened.is_some() {
            let sentence = "a step has begun: it must end before this rank joins the others";
            return Err(WorldError::Misuse(sentence.to_string()));
        }
        self.check_agreement()?;
        let mut n_steps = 0;
        loop {
            let n_bring = self.open(false).wait()?;
            if n_bring == 0 {
                return Ok(Joined { n_steps });
            }
            for bucket in &mut self.buckets {
                bucket.values.fill(T::zeroed());
                bucket.n_ready = bucket.parameters.len();
            }
            self.submit_full();
            self.finish(n_bring, &mut apply)?;
            n_steps += 1;
        }
    }

    fn check_agreement(&mut self) -> Result<(), WorldError> {
        match self.agreement.take().map(Ticket::wait).transpose()? {
            Some(false) => {
                let sentence = "the ranks average parameters of different names or sizes";
                Err(WorldError::Misuse(sentence.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Counts the ranks that have a batch.
    fn open(&self, has_batch: bool) -> Ticket<usize> {
        self.background.submit(move |group| {
            let mut count = [i64::from(has_batch)];
            group.all_reduce(&mut count, Reduction::Sum)?;
            Ok(count[0] as usize)
        })
    }

    /// Starts those that are next and full.
    fn submit_full(&mut self) {
        while let Some(bucket) = self.buckets.get_mut(self.n_submitted) {
            if bucket.n_ready < bucket.parameters.len() {
                return;
            }
            let mut values = std::mem::take(&mut bucket.values);
            let sum = Arc::clone(&bucket.sum);
            bucket.ticket = Some(self.background.submit(move |group| {
                sum(group, &mut values)?;
                Ok(values)
            }));
            self.n_submitted += 1;
        }
    }

    fn finish(
        &mut self,
        n_bring: usize,
        mut apply: impl FnMut(&str, &[T]),
    ) -> Result<(), WorldError> {
        for bucket in &mut self.buckets {
            let Some(ticket) = bucket.ticket.take() else { continue };
            bucket.values = ticket.wait()?;
            for value in &mut bucket.values {
                *value = value.divided(n_bring).unwrap_or(*value);
            }
            bucket.n_ready = 0;
        }
        self.n_submitted = 0;
        for parameter in &mut self.parameters {
            parameter.is_ready = false;
            let values = &self.buckets[parameter.bucket].values;
            apply(&parameter.name, &values[parameter.range.clone()]);
        }
        Ok(())
    }
}

impl Averaged<f32> {
    /// Sends gradients compressed, with error feedback: the averages are no longer exact. All ranks must ask for the same.
    pub fn compressed(mut self, compression: Compression) -> Averaged<f32> {
        for bucket in &mut self.buckets {
            let compressor = Mutex::new(Compressor::new(compression, bucket.values.len()));
            bucket.sum = Arc::new(move |group, values| {
                let mut compressor = compressor.lock().unwrap_or_else(PoisonError::into_inner);
                compressor.all_reduce(group, values, Reduction::Sum)
            });
        }
        self
    }
}

/// Whether all ranks have the same number.
fn agree(own: i64) -> impl FnOnce(&mut Group) -> Result<bool, CollectiveError> + Send {
    move |group| {
        let (mut least, mut most) = ([own], [own]);
        group.all_reduce(&mut least, Reduction::Min)?;
        group.all_reduce(&mut most, Reduction::Max)?;
        Ok(least == most)
    }
}
