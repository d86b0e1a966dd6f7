//! How a run begins: data, output folder, what an earlier run left, and how it goes on where all workers were lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::event::Event;
use super::glimpses::Glimpses;
use super::judge::Judge;
use super::pace::Pace;
use super::recipe::Recipe;
use super::records::Records;
use super::run::Run;
use super::saver::Saver;
use super::step_times::StepTimes;
use super::{Opened, Trainer, make_absolute};
use crate::checkpoint::{CheckpointFolder, Keep, State};
use crate::energy::EnergyMeter;
use crate::error::Error;
use crate::job::Job;
use crate::registry::Registry;
use crate::report::{Report, Seconds};
use crate::timeline::{TIMELINE_STEPS, Timeline};

/// Trains what a trainer was given. Where all workers of a cluster are lost, it goes on from the last checkpoint when there are others.
pub(super) fn run_to_the_end(mut trainer: Trainer) -> Result<Report, Error> {
    loop {
        match run(&mut trainer) {
            Err(Error::WorkersLost { step }) if trainer.stop.load(Ordering::Relaxed) => {
                let (step, folder) = (step as usize, trainer.out.clone());
                return Err(Error::StoppedWithoutWorkers { step, folder });
            }
            Err(Error::ParametersLost { .. } | Error::StateLost { .. })
                if trainer.stop.load(Ordering::Relaxed) =>
            {
                let saved = CheckpointFolder::open(&trainer.out)?.steps()?;
                let (step, folder) =
                    (saved.last().map_or(0, |step| *step as usize), trainer.out.clone());
                return Err(Error::StoppedWithoutWorkers { step, folder });
            }
            Err(
                lost @ (Error::WorkersLost { .. }
                | Error::ParametersLost { .. }
                | Error::StateLost { .. }),
            ) => {
                let sentence = match lost {
                    Error::WorkersLost { step } => {
                        format!("all workers are lost after step {step}")
                    }
                    lost => lost.to_string(),
                };
                let saved = CheckpointFolder::open(&trainer.out)?.steps()?;
                let from = match saved.last() {
                    Some(step) => format!("going on from the last checkpoint, after step {step}"),
                    None => "beginning anew, since there is no checkpoint yet".to_string(),
                };
                let sentence = format!("{sentence}; {from}");
                for callback in &mut trainer.callbacks {
                    callback.on_event(&Event::Warned(&sentence));
                }
                trainer.resumes = !saved.is_empty();
                trainer.discards_unfinished = true;
            }
            outcome => return outcome,
        }
    }
}

fn run(trainer: &mut Trainer) -> Result<Report, Error> {
    let start = Instant::now();
    let energy = EnergyMeter::start();
    trainer.job.check()?;
    trainer.refuse_unfinished()?;
    make_absolute(&mut trainer.job.data, &trainer.folder);
    let opened = Opened::new(trainer)?;
    if trainer.stop.load(Ordering::Relaxed) {
        return Err(Error::StoppedBefore);
    }
    let (job_text, fingerprint) = (trainer.job.to_toml()?, trainer.job.fingerprint());
    let writer = Arc::new(trainer.writer()?);
    // Only now that nobody else writes here is the newest checkpoint the one to go on from.
    let resumed = match trainer.resumes {
        true => Some(writer.folder().latest(Some(&fingerprint))?),
        false => None,
    };
    let encoding_json = opened.encoding_json()?;
    let digests = opened.digests();
    let mut warnings = opened.warnings();
    let (tensors, state, records) = match resumed {
        Some((checkpoint, damaged)) => {
            let records = Records::resume(&trainer.job, &writer, &checkpoint.state)?;
            let is_same = checkpoint.encoding_json == encoding_json && records.digests() == digests;
            if !is_same {
                return Err(Error::DataChanged { folder: trainer.out.clone() });
            }
            warnings.extend(damaged.iter().map(ToString::to_string));
            (Some(checkpoint.tensors), checkpoint.state, records)
        }
        None => {
            let state = State { seed: trainer.job.train.seed, ..State::default() };
            (None, state, Records::new(&trainer.job, &writer, digests)?)
        }
    };
    let keep = Keep { last: trainer.job.output.keep, best: trainer.job.train.keep_best };
    let judge = judge(&trainer.job, &trainer.registry)?;
    let timeline = match &trainer.timeline {
        Some(path) => {
            let name = super::finish::name_of(&trainer.out);
            Some(StepTimes::new(Timeline::create(path, &name, TIMELINE_STEPS)?))
        }
        None => None,
    };
    let mut run = Run {
        planned: opened.planned(&trainer.job, state.step as usize),
        monitored: judge.monitored(&state.history),
        judge,
        job: &trainer.job,
        registry: &trainer.registry,
        recipe: &opened.recipe,
        opened: &opened,
        saver: Saver::new(Arc::clone(&writer), keep),
        records,
        callbacks: &mut trainer.callbacks,
        cluster: trainer.cluster.as_ref(),
        should_stop: &|| trainer.stop.load(Ordering::Relaxed),
        writer: &writer,
        job_text,
        fingerprint,
        encoding_json,
        first_sample: state.samples,
        state,
        split: Seconds { reading: opened.seconds, ..Seconds::default() },
        energy,
        start,
        saved_at: Instant::now(),
        wants_stop: false,
        timeline,
        pace: Pace::default(),
        predicted_seconds: None,
        glimpses: Glimpses::new(trainer.glimpses_per_epoch),
    };
    warnings.iter().for_each(|warning| run.warn(warning));
    run.train(tensors)
}

/// What "best" is judged by, and which way.
fn judge(job: &Job, registry: &Registry) -> Result<Judge, Error> {
    let monitor = &job.train.monitor;
    let metrics = Recipe::metrics(job, registry)?;
    let mut named = metrics.iter().zip(&job.train.metrics);
    // A metric may be named by its first word, or as the job writes it.
    let found =
        named.find(|(_, choice)| choice.name() == monitor || choice.to_string() == *monitor);
    let name = found.as_ref().map_or(monitor, |((name, _), _)| name);
    let higher = found.as_ref().is_some_and(|((_, metric), _)| metric.higher_is_better());
    Ok(Judge::new(name, higher, job.train.early_stopping))
}
