//! What ranks do in these tests. A rank prints its results after "says: ".

use std::time::{Duration, Instant};

use manyhands_net::collective::{Compression, Group, Reduction};
use manyhands_net::launch::Launch;
use manyhands_net::world::{Averaged, World};

fn init() -> World {
    World::init().unwrap_or_else(|error| panic!("{error}"))
}

/// Runs the body of a name.
pub(crate) fn run(body: &str) {
    match body {
        "sum" => sum(&mut init()),
        "collectives" => collectives(&mut init()),
        "subgroups" => subgroups(&mut init()),
        "tickets" => tickets(&init()),
        "grouped" => grouped(&mut init()),
        "uneven" => uneven(&init()),
        "order" => order(&init()),
        "differ" => differ(&init()),
        "impatient" => impatient(),
        "machines" => machines(&mut init()),
        "addresses" => addresses(&mut init()),
        "compressed" => compressed(&init()),
        "group of some" => group_of_some(),
        "example" => assert_eq!(crate::example::main(), std::process::ExitCode::SUCCESS),
        "dies" => dies(&mut init()),
        "late" => late(&mut init()),
        "dies in background" => dies_in_background(&init()),
        other => panic!("there is no body {other:?}"),
    }
}

fn sum(world: &mut World) {
    let mut values = [world.rank() as i64 + 1, 1];
    world.all_reduce(&mut values, Reduction::Sum).unwrap();
    let launcher = Launch::from_environment().unwrap();
    let launcher = launcher.map_or("nobody".to_string(), |launch| launch.launcher.to_string());
    let (rank, size) = (world.rank(), world.size());
    let (local_rank, local_size) = (world.local_rank(), world.local_size());
    println!(
        "says: {launcher} {rank}/{size} local {local_rank}/{local_size} sum {} {}",
        values[0], values[1]
    );
}

/// Over links of both kinds, in the foreground and in the background.
fn machines(world: &mut World) {
    let ticket = world.start_all_reduce(vec![world.rank() as f32; 300_000], Reduction::Sum);
    let mut values = vec![world.rank() as i32; 100_000];
    world.all_reduce(&mut values, Reduction::Sum).unwrap();
    assert!(ticket.wait().unwrap().iter().all(|value| *value == values[0] as f32));
    let (rank, local_rank, local_size) = (world.rank(), world.local_rank(), world.local_size());
    let kinds = world.link_kinds().join("; ");
    println!("says: {rank}: local {local_rank}/{local_size}, sum {}, {kinds}", values[0]);
}

fn addresses(world: &mut World) {
    let mut ranks = [world.rank() as i32];
    world.all_reduce(&mut ranks, Reduction::Sum).unwrap();
    let zero = world.address_of(0).unwrap();
    let own = manyhands_net::host::own_address().unwrap();
    println!("says: sum {}, rank 0 is at {zero}, this is {own}", ranks[0]);
}

fn collectives(world: &mut World) {
    let (rank, size) = (world.rank(), world.size());
    let mut parameters = [vec![rank as f32; 3], vec![], vec![rank as f32; 2_000_000], vec![7.0; 5]];
    let mut slices: Vec<&mut [f32]> = parameters.iter_mut().map(|part| &mut part[..]).collect();
    world.broadcast_parameters(&mut slices, 1).unwrap();
    assert!(parameters[0].iter().chain(&parameters[2]).all(|value| *value == 1.0));
    assert_eq!(parameters[3], [7.0; 5]);
    let gathered = world.all_gather_uneven(&vec![rank as u8; rank]).unwrap();
    let lens: Vec<usize> = gathered.iter().map(Vec::len).collect();
    assert_eq!(lens, (0..size).collect::<Vec<_>>());
    world.barrier().unwrap();
    assert_eq!(world.count(rank > 0).unwrap(), size - 1);
    let mut unlike = vec![0.0f64; rank];
    let refusal = world.broadcast_parameters(&mut [&mut unlike[..]], 0).unwrap_err();
    println!("says: {refusal}; links: {}", world.link_kinds().join(", "));
}

/// Two groups that share all ranks but one, each used by a thread of its own at the same time, and the world beside them.
fn subgroups(world: &mut World) {
    let (rank, size) = (world.rank(), world.size());
    let front: Vec<usize> = (0..size - 1).collect();
    let back: Vec<usize> = (1..size).rev().collect();
    let groups = [world.group(&front).unwrap(), world.group(&back).unwrap()];
    assert_eq!(groups[0].is_some(), front.contains(&rank));
    assert_eq!(groups[1].is_some(), back.contains(&rank));
    let expected = [front.iter().sum::<usize>() as i64, back.iter().sum::<usize>() as i64];
    std::thread::scope(|scope| {
        for (which, group) in groups.into_iter().enumerate() {
            let Some(mut group) = group else { continue };
            // The threads begin in opposite orders on different ranks, and do different numbers of operations.
            let pause = Duration::from_millis(if (rank + which) % 2 == 0 { 0 } else { 20 });
            scope.spawn(move || {
                std::thread::sleep(pause);
                for _ in 0..200 + 100 * which {
                    let mut values = vec![rank as i64; 300];
                    group.all_reduce(&mut values, Reduction::Sum).unwrap();
                    assert_eq!(values, vec![expected[which]; 300]);
                }
                assert_eq!(group.rank(), if which == 0 { rank } else { size - 1 - rank });
            });
        }
        for _ in 0..100 {
            assert_eq!(world.count(true).unwrap(), size);
        }
    });
    // The same ranks again are another group.
    let again = world.group(&back).unwrap();
    if let Some(mut again) = again {
        again.barrier().unwrap();
    }
    assert!(world.group(&[0, 0]).is_err() && world.group(&[size]).is_err());
    println!("says: done");
}

fn tickets(world: &World) {
    let (rank, size) = (world.rank(), world.size());
    let sum: f32 = (0..size).map(|rank| rank as f32).sum();
    let many: Vec<_> = (0..20)
        .map(|round| world.start_all_reduce(vec![(rank * round) as f32; 100], Reduction::Sum))
        .collect();
    let gathered = world.start_all_gather(vec![rank as i32; rank + 1]);
    let counts = vec![2; size];
    let scattered = world.start_reduce_scatter(vec![1i32; 2 * size], counts, Reduction::Sum);
    let swapped =
        world.start_all_to_all((0..size).map(|to| vec![(rank * 10 + to) as u8]).collect());
    let told = world.start_broadcast(vec![rank as f64], size - 1);
    let past = world.start_barrier();
    // Waited for in another order than they were started in.
    past.wait().unwrap();
    assert_eq!(told.wait().unwrap(), [(size - 1) as f64]);
    let expected: Vec<Vec<u8>> = (0..size).map(|from| vec![(from * 10 + rank) as u8]).collect();
    assert_eq!(swapped.wait().unwrap(), expected);
    assert_eq!(scattered.wait().unwrap(), [size as i32; 2]);
    let expected: Vec<Vec<i32>> = (0..size).map(|from| vec![from as i32; from + 1]).collect();
    assert_eq!(gathered.wait().unwrap(), expected);
    for (round, ticket) in many.into_iter().enumerate() {
        assert_eq!(ticket.wait().unwrap(), vec![sum * round as f32; 100]);
    }
    let refusal = world.start_broadcast(vec![0u8], size).wait().unwrap_err();
    println!("says: {refusal}");
    // What is misused leaves the others as they were.
    assert_eq!(world.start_all_reduce(vec![1u8], Reduction::Sum).wait().unwrap(), [size as u8]);
}

fn grouped(world: &mut World) {
    let value = |rank: usize, idx: usize| ((rank * 7919 + idx * 104_729) % 1000) as f32 / 7.0;
    let lens = [3, 0, 700_000, 800_000, 5, 1];
    let make = |rank: usize| -> Vec<Vec<f32>> {
        lens.iter().map(|len| (0..*len).map(|idx| value(rank, idx + len)).collect()).collect()
    };
    let ticket = world.start_all_reduce_grouped(make(world.rank()), Reduction::Mean);
    let mut alone = make(world.rank());
    for one in &mut alone {
        world.all_reduce(one, Reduction::Mean).unwrap();
    }
    let bits = |values: &[Vec<f32>]| -> Vec<u32> {
        values.iter().flatten().map(|value| value.to_bits()).collect()
    };
    assert!(bits(&ticket.wait().unwrap()) == bits(&alone), "the same bits as one by one");
    println!("says: same");
}

/// Rank r has r + 1 batches of gradient 1, 2, 3...; all ranks apply all averages.
fn uneven(world: &World) {
    let mut total = [0.0f64; 2];
    let mut averaged = Averaged::new(world, &[("a", 1), ("b", 1)]).unwrap();
    let mut brought = Vec::new();
    for epoch in 0..2 {
        for batch in 0..=world.rank() {
            averaged.ready("b", &[(batch + 1) as f64]).unwrap();
            averaged.ready("a", &[(world.rank() + epoch) as f64]).unwrap();
            let n = averaged.step(|name, average| total[usize::from(name == "b")] += average[0]);
            brought.push(n.unwrap());
        }
        let joined = averaged.join(|name, average| total[usize::from(name == "b")] += average[0]);
        assert_eq!(joined.unwrap().n_steps, world.size() - world.rank() - 1);
    }
    println!("says: {} {} brought {brought:?}", total[0], total[1]);
}

/// Gradients become ready in another order on every rank, in buckets of their own.
fn order(world: &World) {
    const LEN: usize = 1_500_000;
    let names = ["a", "b", "c"];
    let mut averaged = Averaged::new(world, &names.map(|name| (name, LEN))).unwrap();
    for step in 0..3 {
        for turn in 0..3 {
            let which = (turn + world.rank() + step) % 3;
            let gradient = vec![(which * 10 + world.rank()) as f32; LEN];
            averaged.ready(names[which], &gradient).unwrap();
        }
        let mut seen = Vec::new();
        averaged
            .step(|name, average| {
                assert!(average.iter().all(|value| *value == average[0]));
                seen.push(format!("{name} {}", average[0]));
            })
            .unwrap();
        seen.sort();
        println!("says: {}", seen.join(", "));
    }
}

/// Ranks that average different things, and misuse that is named before it reaches anybody.
fn differ(world: &World) {
    let mut averaged = Averaged::<f32>::new(world, &[("a", 2), ("b", 1)]).unwrap();
    let mut refusals = vec![
        averaged.ready("c", &[1.0]).unwrap_err().to_string(),
        averaged.ready("a", &[1.0]).unwrap_err().to_string(),
        averaged.step(|_, _| ()).unwrap_err().to_string(),
    ];
    averaged.ready("a", &[1.0; 2]).unwrap();
    refusals.push(averaged.ready("a", &[1.0; 2]).unwrap_err().to_string());
    refusals.push(averaged.join(|_, _| ()).unwrap_err().to_string());
    averaged.ready("b", &[1.0]).unwrap();
    assert_eq!(averaged.step(|_, average| assert_eq!(average[0], 1.0)).unwrap(), world.size());
    let len = 1 + world.rank();
    let mut unlike = Averaged::<f32>::new(world, &[("a", len)]).unwrap();
    unlike.ready("a", &vec![0.0; len]).unwrap();
    refusals.push(unlike.step(|_, _| ()).unwrap_err().to_string());
    println!("says: {}", refusals.join("; "));
}

/// Sums of compressed gradients approach the exact ones, and are the same on all ranks.
fn compressed(world: &World) {
    const LEN: usize = 1000;
    let all = [
        Compression::Bf16,
        Compression::F16,
        Compression::EightBit,
        Compression::TopK { share: 0.05 },
    ];
    for compression in all {
        let averaged = Averaged::new(world, &[("a", LEN)]).unwrap();
        let mut averaged = averaged.compressed(compression);
        let mut total = vec![0.0f32; LEN];
        let gradient: Vec<f32> =
            (0..LEN).map(|idx| (idx % 37) as f32 * 0.01 + world.rank() as f32).collect();
        for _ in 0..400 {
            averaged.ready("a", &gradient).unwrap();
            let add = |_: &str, average: &[f32]| {
                total.iter_mut().zip(average).for_each(|(total, value)| *total += value);
            };
            averaged.step(add).unwrap();
        }
        let mean = (world.size() - 1) as f32 / 2.0;
        for (idx, total) in total.iter().enumerate() {
            let exact = 400.0 * ((idx % 37) as f32 * 0.01 + mean);
            // What is kept back is of some twenty steps at most, for the largest few.
            assert!((total - exact).abs() < 0.15 * exact, "{compression:?}: {total} {exact}");
        }
        let bits = total.iter().fold(0u32, |sum, value| sum.rotate_left(1) ^ value.to_bits());
        println!("says: {compression:?} {bits:08x}");
    }
}

/// Rank 1 never asks for the group of all.
fn group_of_some() {
    let launch = Launch::from_environment().unwrap().unwrap();
    let world = World::launched(&launch, Duration::from_secs(2)).unwrap();
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_secs(4));
        return println!("says: nothing");
    }
    let Err(error) = world.group(&[0, 1, 2]) else { panic!("rank 1 has not come") };
    println!("says: {error}");
}

/// Waits a second and a half for the others.
fn impatient() {
    let launch = Launch::from_environment().unwrap().unwrap();
    let start = Instant::now();
    match World::launched(&launch, Duration::from_millis(1500)) {
        Ok(world) => println!("says: rank {} is in", world.rank()),
        Err(error) => println!("says: {error}"),
    }
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// The last rank dies after some operations.
fn dies(world: &mut World) {
    let last = world.size() - 1;
    for round in 0.. {
        if world.rank() == last && round == 10 {
            std::process::exit(0);
        }
        let start = Instant::now();
        if let Err(error) = world.all_reduce(&mut vec![1.0f32; 10_000], Reduction::Sum) {
            assert!(start.elapsed() < Duration::from_secs(10));
            println!("says: {error}");
            return;
        }
    }
}

/// Rank 1 is alive and does not come until the others have told.
fn late(world: &mut World) {
    world.barrier().unwrap();
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_secs(4));
        return;
    }
    println!("says: {}", world.barrier().unwrap_err());
}

fn dies_in_background(world: &World) {
    let last = world.size() - 1;
    let reduce = |group: &mut Group| group.all_reduce(&mut [1.0f32; 100], Reduction::Sum);
    world.start(reduce).wait().unwrap();
    if world.rank() == last {
        std::process::exit(0);
    }
    let (first, second) = (world.start(reduce), world.start_barrier());
    println!("says: {} | {}", first.wait().unwrap_err(), second.wait().unwrap_err());
}
