//! The CPU device as its users see it: runs, refusals, faults in the data.

#![allow(clippy::unwrap_used)] // a test that cannot go on should stop there

use manyhands_device::{CpuDevice, Device, DeviceError, Launch, Lent, ReadGroups, group_offsets};
use manyhands_program::{Builder, DType, Init, Program, Tensor, TensorType, Window};

/// y = relu(x w), and w becomes w / 2.
fn halving() -> Program {
    let g = Builder::new("halving");
    let x = g.input("x", DType::F32, [2, 3]).unwrap();
    let w = g.weight("w", [3, 2], Init::Constant(1.0)).unwrap();
    g.output("y", &x.matmul(&w).unwrap().relu().unwrap()).unwrap();
    g.update(&w, &(&w * 0.5).unwrap()).unwrap();
    g.finish()
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    tensor.to_f64()
}

#[test]
fn a_program_runs_and_updates_its_parameters() {
    let mut device = CpuDevice::new(2).unwrap();
    let x = Tensor::new([2, 3], &[1.0f32, 2.0, 3.0, -1.0, -2.0, -3.0]).unwrap();
    let w = Tensor::new([3, 2], &[1.0f32, 0.0, 1.0, 0.0, 1.0, 2.0]).unwrap();
    let done = device.evaluate(&halving(), &[x], &[w]).unwrap();
    assert_eq!(floats(&done.outputs[0]), [6.0, 6.0, 0.0, 0.0]);
    assert_eq!(floats(&done.parameters[0]), [0.5, 0.0, 0.5, 0.0, 0.5, 1.0]);
}

#[test]
fn memory_of_the_caller_takes_the_place_of_buffers() {
    let mut device = CpuDevice::new(1).unwrap();
    let types = [[2, 3], [3, 2], [2, 2]].map(|shape| TensorType::new(DType::F32, shape));
    let [x, w, y] = types.map(|ty| device.allocate(&ty).unwrap());
    let executable = device.compile(&halving()).unwrap();
    let launch = Launch { executable, inputs: vec![x], parameters: vec![w], outputs: vec![y] };
    // Elements that begin at a multiple of four bytes, and of nothing more.
    let (ones, mut own) = ([1.0f32; 7], [1.0f32; 7]);
    let lent = Lent {
        read: vec![(x, bytemuck::cast_slice(&ones[1..]))],
        written: vec![(w, bytemuck::cast_slice_mut(&mut own[1..]))],
    };
    device.run_lent(&launch, lent).unwrap();
    assert_eq!(own, [1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]);
    assert_eq!(floats(&device.download(y).unwrap()), [3.0; 4]);

    let own: &mut [u8] = bytemuck::cast_slice_mut(&mut own);
    let lent = Lent { read: vec![(w, &own[..24])], ..Lent::default() };
    let error = device.run_lent(&launch, lent).unwrap_err();
    assert!(matches!(error, DeviceError::LentToRead { .. }), "{error}");
    let (one, other) = own.split_at_mut(24);
    let mut other = other.to_vec();
    other.resize(24, 0);
    let lent = Lent { written: vec![(w, one), (w, &mut other)], ..Lent::default() };
    let error = device.run_lent(&launch, lent).unwrap_err();
    assert!(matches!(error, DeviceError::SharedBuffer { .. }), "{error}");
    let lent = Lent { written: vec![(w, &mut own[..20])], ..Lent::default() };
    let error = device.run_lent(&launch, lent).unwrap_err();
    assert!(matches!(error, DeviceError::BufferLength { .. }), "{error}");
    let lent = Lent { written: vec![(w, &mut own[1..25])], ..Lent::default() };
    let error = device.run_lent(&launch, lent).unwrap_err();
    assert!(matches!(error, DeviceError::LentMemory { .. }), "{error}");
}

#[test]
fn a_group_is_one_piece_of_memory_and_its_buffers_are_as_any_others() {
    let mut device = CpuDevice::new(1).unwrap();
    let (w, x, y) = ([3, 2], [2, 3], [2, 2]);
    let types = [&w, &x, &y].map(|shape| TensorType::new(DType::F32, *shape));
    assert_eq!(group_offsets(&types), (vec![0, 64, 128], 192));
    let group = device.allocate_group(&types).unwrap();
    let [w, x, y] = group.buffers[..] else { panic!("three buffers") };
    let ones = [1.0f32; 6].map(f32::to_le_bytes);
    device.write(w, ones.as_flattened()).unwrap();
    device.write(x, ones.as_flattened()).unwrap();
    let executable = device.compile(&halving()).unwrap();
    let launch = Launch { executable, inputs: vec![x], parameters: vec![w], outputs: vec![y] };
    device.run(&[launch]).unwrap();
    let expected = [vec![0.5f32; 6], vec![1.0; 6], vec![3.0; 4]];
    let mut bytes = Vec::new();
    for values in expected {
        bytes.extend(values.into_iter().flat_map(f32::to_le_bytes));
        bytes.resize(bytes.len().next_multiple_of(64), 0);
    }
    assert!(device.host_bytes(group.id).unwrap() == bytes);
    assert_eq!(floats(&device.download(y).unwrap()), [3.0; 4]);
}

#[test]
fn a_group_is_written_while_others_are_read() {
    let mut device = CpuDevice::new(1).unwrap();
    let types = [TensorType::new(DType::I32, [2])];
    let groups = [(); 3].map(|()| device.allocate_group(&types).unwrap());
    let [a, b, c] = [0, 1, 2].map(|idx| groups[idx].id);
    device.write(groups[2].buffers[0], &[7; 8]).unwrap();
    let mut copy = |read: &dyn ReadGroups, own: &mut [u8]| {
        assert!(read.bytes(0).iter().all(|&byte| byte == 0));
        own.copy_from_slice(read.bytes(1));
    };
    device.with_host_bytes(&[a, c], b, &mut copy).unwrap();
    let written = device.download(groups[1].buffers[0]).unwrap();
    assert_eq!(written.bytes(), [7; 8]);
    let mut never = |_: &dyn ReadGroups, _: &mut [u8]| panic!("it was refused");
    let error = device.with_host_bytes(&[a, b], b, &mut never).unwrap_err();
    assert!(matches!(error, DeviceError::SharedGroup { .. }), "{error}");
    let error = device.free(groups[0].buffers[0]).unwrap_err();
    assert!(matches!(error, DeviceError::GroupMember { .. }), "{error}");
    device.free_group(a).unwrap();
    let error = device.with_host_bytes(&[a], b, &mut never).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuchGroup { .. }), "{error}");
    assert!(device.download(groups[0].buffers[0]).is_err() && device.host_bytes(a).is_err());
    assert!(device.free_group(a).is_err());
    let truth = TensorType::new(DType::Bool, [2]);
    assert_eq!(device.allocate_group(&[truth]).unwrap_err(), DeviceError::GroupOfTruthValues);
}

#[test]
fn updates_that_swap_parameters_see_the_old_values() {
    let g = Builder::new("swap");
    let a = g.weight("a", [2], Init::Constant(1.0)).unwrap();
    let b = g.weight("b", [2], Init::Constant(2.0)).unwrap();
    g.output("a", &a).unwrap();
    g.update(&a, &b).unwrap();
    g.update(&b, &a).unwrap();
    let one = Tensor::new([2], &[1.0f32, 1.5]).unwrap();
    let two = Tensor::new([2], &[2.0f32, 2.5]).unwrap();
    let mut device = CpuDevice::new(1).unwrap();
    let done = device.evaluate(&g.finish(), &[], &[one.clone(), two.clone()]).unwrap();
    assert_eq!(done.outputs[0], one);
    assert_eq!(done.parameters, [two, one]);
}

#[test]
fn an_index_outside_is_a_sentence_and_the_device_goes_on() {
    let g = Builder::new("lookup");
    let table = g.input("table", DType::F32, [4, 2]).unwrap();
    let indices = g.input("indices", DType::I32, [3]).unwrap();
    let rows = g.scope("embedding", |_| table.gather(0, &indices)).unwrap();
    g.output("rows", &rows).unwrap();
    let program = g.finish();
    let table = Tensor::new([4, 2], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
    let mut device = CpuDevice::new(2).unwrap();
    for bad in [4, -1, i32::MAX, i32::MIN] {
        let indices = Tensor::new([3], &[0, bad, 1]).unwrap();
        let error = device.evaluate(&program, &[table.clone(), indices], &[]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("gather") && text.contains("lookup"), "{text}");
        assert!(text.contains("at embedding") && text.contains(&bad.to_string()), "{text}");
    }
    let indices = Tensor::new([3], &[3, 0, 3]).unwrap();
    let done = device.evaluate(&program, &[table, indices], &[]).unwrap();
    assert_eq!(floats(&done.outputs[0]), [6.0, 7.0, 0.0, 1.0, 6.0, 7.0]);
}

#[test]
fn a_fault_inside_scans_stops_all_threads_and_is_named() {
    let g = Builder::new("loop");
    let table = g.input("table", DType::F32, [4, 64]).unwrap();
    let all = g.input("indices", DType::I32, [3, 2, 8]).unwrap();
    let w = g.weight("w", [8, 64], Init::Constant(0.0)).unwrap();
    let start = g.full(&TensorType::new(DType::F32, [8, 64]), 0.0).unwrap();
    let (last, _) = g
        .scan(&[&start], &[&all], false, |outer, carried, items| {
            outer.scan(&[&carried[0]], &[&items[0]], true, |inner, carried, items| {
                let rows = inner.scope("lookup", |_| table.gather(0, &items[0]))?;
                Ok((vec![(&carried[0] + &rows)?], vec![]))
            })
        })
        .unwrap();
    g.output("last", &last[0]).unwrap();
    g.update(&w, &(&last[0] + 1.0).unwrap()).unwrap();
    let program = g.finish();
    let table = Tensor::new([4, 64], &[1.0f32; 256]).unwrap();
    let w = Tensor::new([8, 64], &[5.0f32; 512]).unwrap();
    for n_threads in 1..5 {
        for bad in [0, 7, 8, 20, 47] {
            let mut indices = [1; 48];
            indices[bad] = 99;
            let indices = Tensor::new([3, 2, 8], &indices).unwrap();
            let mut device = CpuDevice::new(n_threads).unwrap();
            let inputs = [table.clone(), indices];
            let error = device
                .evaluate(&program, &inputs, std::slice::from_ref(&w))
                .unwrap_err()
                .to_string();
            assert!(error.contains("`gather`") && error.contains("at lookup"), "{error}");
            assert!(error.contains("index 99"), "{error}");
            let good = Tensor::new([3, 2, 8], &[1; 48]).unwrap();
            let done = device
                .evaluate(&program, &[table.clone(), good], std::slice::from_ref(&w))
                .unwrap();
            assert_eq!(floats(&done.outputs[0]), [6.0; 512]);
        }
    }
}

#[test]
fn shapes_without_elements_run() {
    let g = Builder::new("nothing");
    let x = g.input("x", DType::F32, [1, 4, 4, 0]).unwrap();
    let kernel = g.input("k", DType::F32, [3, 3, 0, 8]).unwrap();
    let y = x.convolution(&kernel, Window::valid(2)).unwrap();
    g.output("dx", &g.gradients(&y.sum_all().unwrap(), &[&x]).unwrap()[0]).unwrap();
    g.output("y", &y).unwrap();
    let a = g.input("a", DType::F32, [0, 3]).unwrap();
    let b = g.input("b", DType::F32, [3, 2]).unwrap();
    g.output("product", &a.matmul(&b).unwrap().softmax(1).unwrap()).unwrap();
    g.output("empty", &b.matmul(&g.input("c", DType::F32, [2, 0]).unwrap()).unwrap()).unwrap();
    let inputs = [
        Tensor::new([1, 4, 4, 0], &[] as &[f32]).unwrap(),
        Tensor::new([3, 3, 0, 8], &[] as &[f32]).unwrap(),
        Tensor::new([0, 3], &[] as &[f32]).unwrap(),
        Tensor::new([3, 2], &[1.0f32; 6]).unwrap(),
        Tensor::new([2, 0], &[] as &[f32]).unwrap(),
    ];
    for n_threads in 1..4 {
        let mut device = CpuDevice::new(n_threads).unwrap();
        let done = device.evaluate(&g.clone().finish(), &inputs, &[]).unwrap();
        assert_eq!(floats(&done.outputs[1]), [0.0; 32]);
    }
}

#[test]
fn a_label_outside_is_named() {
    let g = Builder::new("loss");
    let logits = g.input("logits", DType::F32, [2, 3]).unwrap();
    let labels = g.input("labels", DType::I64, [2]).unwrap();
    g.output("loss", &logits.cross_entropy(&labels).unwrap()).unwrap();
    let logits = Tensor::new([2, 3], &[0.0f32; 6]).unwrap();
    let labels = Tensor::new([2], &[1i64, 3]).unwrap();
    let mut device = CpuDevice::new(1).unwrap();
    let error = device.evaluate(&g.finish(), &[logits, labels], &[]).unwrap_err().to_string();
    assert!(error.contains("label 3 in row 1 is not one of the 3 classes"), "{error}");
}

#[test]
fn misuse_is_refused_with_the_reason() {
    let mut device = CpuDevice::new(1).unwrap();
    let program = halving();
    let executable = device.compile(&program).unwrap();
    let x = device.upload(&Tensor::new([2, 3], &[0.0f32; 6]).unwrap()).unwrap();
    let w = device.upload(&Tensor::new([3, 2], &[0.0f32; 6]).unwrap()).unwrap();
    let y = device.upload(&Tensor::new([2, 2], &[0.0f32; 4]).unwrap()).unwrap();
    let launch = |inputs: &[_], parameters: &[_], outputs: &[_]| Launch {
        executable,
        inputs: inputs.to_vec(),
        parameters: parameters.to_vec(),
        outputs: outputs.to_vec(),
    };
    let mut refused = |launches: &[Launch]| device.run(launches).unwrap_err();
    let error = refused(&[launch(&[], &[w], &[y])]);
    assert!(matches!(error, DeviceError::ArgumentCount { expected: 1, found: 0, .. }), "{error}");
    let error = refused(&[launch(&[w], &[w], &[y])]);
    assert!(matches!(error, DeviceError::ArgumentType { what: "input", .. }), "{error}");
    let both = [launch(&[x], &[w], &[y]), launch(&[x], &[w], &[y])];
    assert!(matches!(refused(&both), DeviceError::SharedBuffer { .. }));
    device.free(y).unwrap();
    let error = device.run(&[launch(&[x], &[w], &[y])]).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuchBuffer { .. }), "{error}");
    device.release(executable).unwrap();
    let error = device.run(&[launch(&[x], &[w], &[x])]).unwrap_err();
    assert!(matches!(error, DeviceError::NoSuchExecutable { .. }), "{error}");
    assert!(matches!(device.write(x, &[0; 3]), Err(DeviceError::BufferLength { .. })));
    assert!(matches!(CpuDevice::new(0), Err(DeviceError::Threads { .. })));
}

#[test]
fn sums_over_grains_must_be_split_off_first() {
    let g = Builder::new("unsplit");
    let x = g.input("x", DType::F32, [2]).unwrap();
    g.output("total", &x.grain_sum().unwrap()).unwrap();
    let error = CpuDevice::new(1).unwrap().compile(&g.finish()).unwrap_err();
    assert!(error.to_string().contains("split it first"), "{error}");
}

#[test]
fn sums_over_parts_must_be_cut_out_first() {
    let g = Builder::new("part");
    let x = g.input("x", DType::F32, [2]).unwrap();
    g.output("total", &x.all_reduce().unwrap()).unwrap();
    let error = CpuDevice::new(1).unwrap().compile(&g.finish()).unwrap_err();
    assert!(error.to_string().contains("cut the program there first"), "{error}");
}

#[test]
fn the_memory_plan_is_known_before_running() {
    let mut device = CpuDevice::new(1).unwrap();
    let executable = device.compile(&halving()).unwrap();
    let memory = device.memory(executable).unwrap();
    assert_eq!(memory.argument_bytes, (6 + 6 + 4) * 4);
    assert!(memory.peak_bytes() >= memory.argument_bytes);
}

#[test]
fn two_devices_work_at_the_same_time() {
    let run = |seed: f32| {
        let mut device = CpuDevice::new(2).unwrap();
        let program = halving();
        for round in 0..200 {
            let x = Tensor::new([2, 3], &[seed + round as f32; 6]).unwrap();
            let w = Tensor::new([3, 2], &[1.0f32; 6]).unwrap();
            let done = device.evaluate(&program, &[x], &[w]).unwrap();
            assert_eq!(floats(&done.outputs[0]), [f64::from(3.0 * (seed + round as f32)); 4]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1.0));
        scope.spawn(|| run(1000.0));
    });
}

#[test]
fn scans_and_conds_run_on_any_number_of_threads() {
    let g = Builder::new("loop");
    let xs = g.input("xs", DType::F32, [5, 4]).unwrap();
    let lengths = g.input("lengths", DType::I32, [4]).unwrap();
    let start = g.input("start", DType::F32, [4]).unwrap();
    let factor = g.input("factor", DType::F32, [4]).unwrap();
    let (last, all) = g
        .scan_lengths(&lengths, &[&start], &[&xs], false, |g, carried, items| {
            let sum = (&(&carried[0] * &factor)? + &items[0])?;
            let large = sum.sum_all()?.greater(&g.scalar(DType::F32, 100.0)?)?;
            let next = g.cond(&large, |_| Ok(vec![(&sum * 0.5)?]), |_| Ok(vec![sum.clone()]))?;
            Ok((next.clone(), next))
        })
        .unwrap();
    g.output("last", &last[0]).unwrap();
    g.output("all", &all[0]).unwrap();
    let program = g.finish();
    let xs: Vec<f32> = (0..20).map(|x| x as f32).collect();
    let inputs = [
        Tensor::new([5, 4], &xs).unwrap(),
        Tensor::new([4], &[5, 3, 0, 1]).unwrap(),
        Tensor::new([4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap(),
        Tensor::new([4], &[1.0f32, 2.0, 1.0, 3.0]).unwrap(),
    ];
    let expected = by_hand(&xs, [5, 3, 0, 1], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 1.0, 3.0]);
    for n_threads in 1..4 {
        let mut device = CpuDevice::new(n_threads).unwrap();
        let done = device.evaluate(&program, &inputs, &[]).unwrap();
        assert_eq!(done.outputs[0].elements::<f32>().unwrap(), expected.0);
        assert_eq!(done.outputs[1].elements::<f32>().unwrap(), expected.1);
    }
}

fn by_hand(
    xs: &[f32],
    lengths: [usize; 4],
    start: [f32; 4],
    factor: [f32; 4],
) -> (Vec<f32>, Vec<f32>) {
    let mut carried = start;
    let mut all = Vec::new();
    for (t, items) in xs.chunks(4).enumerate() {
        let mut next: [f32; 4] = std::array::from_fn(|i| carried[i] * factor[i] + items[i]);
        if next.iter().sum::<f32>() > 100.0 {
            next = next.map(|x| x * 0.5);
        }
        for i in 0..4 {
            let active = t < lengths[i];
            all.push(if active { next[i] } else { 0.0 });
            carried[i] = if active { next[i] } else { carried[i] };
        }
    }
    (carried.to_vec(), all)
}
