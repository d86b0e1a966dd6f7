//! The one thread on which requests are made, and tickets for what they bring.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};

use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

/// Started with the first request; ends with the process.
fn runtime() -> Result<&'static Runtime, String> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let start = || {
        let mut builder = Builder::new_multi_thread();
        // One thread moves bytes faster than they are parsed; looking up names takes threads of its own.
        builder.worker_threads(1).max_blocking_threads(4).thread_name("objects");
        builder.enable_all().build().map_err(|err| err.to_string())
    };
    RUNTIME.get_or_init(start).as_ref().map_err(Clone::clone)
}

/// What something under way will bring. Dropped, it is given up.
pub(super) struct Ticket<T> {
    result: Receiver<T>,
    task: AbortHandle,
}

/// Begins something on the thread of requests. An error says why there is no such thread.
pub(super) fn begin<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<Ticket<T>, String> {
    let (sender, result) = sync_channel(1);
    let task = runtime()?.spawn(async move {
        // There is room for one result, so this never blocks; nobody may wait any more.
        let _ = sender.send(work.await);
    });
    Ok(Ticket { result, task: task.abort_handle() })
}

impl<T> Ticket<T> {
    /// Waits for it, with a wait of the operating system: the caller may be inside a runtime of its own.
    pub(super) fn wait(self) -> Result<T, String> {
        self.result.recv().map_err(|_| "the thread of requests ended".to_string())
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
