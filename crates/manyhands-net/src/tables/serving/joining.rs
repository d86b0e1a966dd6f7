//! How a server comes to its director.

use std::time::Instant;

use super::{CALL_AGAIN, ServerSettings};
use crate::tables::error::TableError;
use crate::tables::identity::ServerId;
use crate::tables::line::Line;
use crate::tables::message::{FromDirector, Reach, ToDirector, VERSION};
use crate::tables::network::Network;
use crate::transport::wait::Waiting;

/// Calls the director and joins.
pub(super) fn join(
    network: &dyn Network,
    settings: &ServerSettings,
    reach: Reach,
    until: Instant,
) -> Result<(Line, ServerId), TableError> {
    let failed = |what: String| TableError::NoLink { who: "the director".into(), what };
    let link = loop {
        match network.call(&settings.director, until, &|| false) {
            Ok(link) => break link,
            Err(error) if Instant::now() + CALL_AGAIN > until => {
                return Err(failed(error.to_string()));
            }
            Err(_) => std::thread::sleep(CALL_AGAIN),
        }
    };
    let mut lines = [Some(Line::new(link))];
    let hello = ToDirector::JoinAsServer {
        version: VERSION,
        name: settings.name.clone(),
        reach,
        memory_limit: settings.memory_limit,
    };
    if let [Some(line)] = &mut lines {
        line.queue(&hello, None).map_err(|error| failed(error.to_string()))?;
    }
    let mut waiting = Waiting::new();
    while Instant::now() < until {
        let [Some(line)] = &mut lines else { break };
        line.push().map_err(|error| failed(error.to_string()))?;
        match line.next::<FromDirector>(&mut false).map_err(|error| failed(error.to_string()))? {
            Some((FromDirector::WelcomeServer { id }, _)) => {
                let [Some(line)] = lines else { break };
                return Ok((line, id));
            }
            Some((FromDirector::Unwelcome { error }, _)) => return Err(error),
            Some(_) => {}
            None => {
                let interest = line.interest();
                let _ = waiting.wait(&mut lines, |_| interest, None, until);
            }
        }
    }
    Err(TableError::Deadline {
        what: "joining as a server".into(),
        waits_for: "the director has not answered".into(),
        after: settings.deadline,
    })
}
