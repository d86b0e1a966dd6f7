//! The part of the driver's training loop that forms meshes: it has time, where threads that serve workers do not.

use manyhands_net::membership::driver::Event;

use super::at_driver::ToDo;
use crate::checkpoint::NamedTensor;
use crate::cluster::driver::Remote;
use crate::cluster::table::Table;
use crate::cluster::words::PlanPrograms;
use crate::error::Error;
use crate::mesh::spread;

impl Remote<'_> {
    /// Has workers that wait for places in a mesh get them.
    pub(in crate::cluster) fn form_mesh(&self) -> Result<(), Error> {
        let Some(plan) = &self.mesh else { return Ok(()) };
        let mut table = self.shared.table();
        let (members, done) = (table.connections(), table.done);
        let Some(mesh) = &mut table.mesh else { return Ok(()) };
        let (mut to_do, sentence) = mesh.look(&members, done)?;
        let is_news = sentence.is_some();
        table.news.extend(sentence);
        if let (Some(ToDo::Build(_)), Some(step)) = (&to_do, table.unknown_loss()) {
            let reason = format!("the loss of step {step} is lost with the workers that knew it");
            to_do = Some(ToDo::BeginAgain(reason));
        }
        self.tell_mesh(&mut table);
        match to_do {
            None => drop(table),
            Some(ToDo::BeginAgain(reason)) => {
                table.failed.get_or_insert(Error::StateLost { reason });
                return Ok(());
            }
            Some(ToDo::Build(shape)) => {
                drop(table);
                let sizes = self.shared.programs.plans.iter().map(PlanPrograms::training);
                let spread = spread(plan, shape, sizes)?;
                let mut table = self.shared.table();
                let members = table.connections();
                if let Some(mesh) = &mut table.mesh
                    && let Some(sentence) = mesh.built(shape, spread, &members)
                {
                    // Who was lost may have been the only one that had not told of the last step yet.
                    let steps = mesh.steps_kept();
                    table.done = table.done.max(steps);
                    table.news.push_back(sentence);
                }
                self.tell_mesh(&mut table);
                drop(table);
                self.shared.ring();
                return Ok(());
            }
        }
        if is_news {
            self.shared.ring();
        }
        Ok(())
    }

    /// Has the coordinator know how a mesh stands, where that is news: those who leave wait for it.
    fn tell_mesh(&self, table: &mut Table) {
        let is_news = table.mesh.as_mut().is_some_and(|mesh| mesh.untold_standing().is_some());
        if let Some(standing) = table.standing_of_mesh().filter(|_| is_news) {
            self.follower.note(Event::Stands(Box::new(standing)));
        }
    }

    /// The state after so many steps, put together from what the places of a mesh hold.
    pub(in crate::cluster) fn tensors_of_mesh(
        &self,
        steps: u64,
    ) -> Result<Vec<NamedTensor>, Error> {
        self.wait(|table| {
            let mesh = table.mesh.as_mut()?;
            match mesh.state_at(steps) {
                Ok(None) => {
                    if mesh.want_state(steps) {
                        self.shared.ring();
                    }
                    None
                }
                Ok(Some(tensors)) => Some(Ok(tensors)),
                Err(error) => Some(Err(error)),
            }
        })?
    }
}
