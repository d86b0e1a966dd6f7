//! A door whose process has no file descriptors left: it neither dies nor spins, and goes on when there are some again. In a process of its
//! own, because the limit is one of the process.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use manyhands_net::secure::{Purpose, SECRET_VARIABLE, Secret};
use manyhands_net::wire::{DialError, Doorman, DoormanSettings, dial};
use rustix::process::{Resource, Rlimit};

const PURPOSE: Purpose = Purpose(1);
const PATIENCE: Duration = Duration::from_secs(30);
const FEW: u64 = 40;

/// Not a test by itself: what the child does. It keeps whom it lets in until told to let go, and then says how often it could not take one.
#[test]
#[ignore = "the child of the test below, which runs it in a process of its own with few files"]
fn child_with_few_files() {
    let limit = Rlimit { current: Some(FEW), maximum: Some(FEW) };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let guests = Arc::new(Mutex::new(Vec::new()));
    let kept = guests.clone();
    let settings = DoormanSettings::new(Secret::from_environment().unwrap(), [PURPOSE], *b"");
    let admit = move |who| kept.lock().unwrap().push(who);
    let doorman = Doorman::start(listener, None, settings, admit).unwrap();
    // The harness has begun the line with the name of the test.
    println!("\n{address}");
    for line in std::io::stdin().lines() {
        line.unwrap();
        guests.lock().unwrap().clear();
        println!("{}", doorman.refusals().accept_failures);
    }
}

struct FewFiles {
    child: Child,
    orders: ChildStdin,
    answers: std::io::Lines<BufReader<ChildStdout>>,
    address: String,
    secret: Secret,
}

impl FewFiles {
    fn start() -> FewFiles {
        let secret = Secret::random().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["few_files::child_with_few_files", "--exact", "--ignored", "--nocapture"])
            .env(SECRET_VARIABLE, secret.text())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_address = |line: &String| line.starts_with("127.0.0.1:");
        let address = answers.by_ref().map(Result::unwrap).find(is_address).unwrap();
        FewFiles { child, orders, answers, address, secret }
    }

    fn dial(&self, deadline: Duration) -> Result<(), DialError> {
        dial(&self.address, &self.secret, PURPOSE, b"", deadline).map(drop)
    }

    /// Processor time that the child has used, in hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<_> = after_name.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Tells the child to let its guests go. How often it could not take a connection.
    fn let_go(&mut self) -> u64 {
        writeln!(self.orders, "let go").unwrap();
        self.answers.next().unwrap().unwrap().parse().unwrap()
    }
}

impl Drop for FewFiles {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_door_without_file_descriptors_waits_and_goes_on() {
    let mut door = FewFiles::start();
    let mut n_guests = 0;
    // Guests are kept, so at some point there is nothing to take the next one with, and nobody to send away.
    while door.dial(Duration::from_secs(1)).is_ok() {
        n_guests += 1;
        assert!(n_guests < FEW, "the limit holds");
    }
    assert!(n_guests > 10, "{n_guests} got in before");
    let waiting: Vec<_> = (0..20).map(|_| TcpStream::connect(&door.address).unwrap()).collect();
    let before = door.ticks();
    std::thread::sleep(Duration::from_millis(1000));
    let used = door.ticks() - before;
    assert!(used < 50, "{used} % of a core while nothing can be done");
    assert!(door.let_go() > 0, "the files did run out");
    door.dial(PATIENCE).unwrap();
    drop(waiting);
    door.dial(PATIENCE).unwrap();
}

#[test]
fn strangers_make_room_when_the_files_run_out() {
    let mut door = FewFiles::start();
    let strangers: Vec<_> = (0..60).map(|_| TcpStream::connect(&door.address).unwrap()).collect();
    door.dial(PATIENCE).unwrap();
    assert!(door.let_go() > 0, "the files did run out");
    drop(strangers);
}
