//! What scripts and people read of a run.

use expect_test::expect;

use super::*;

fn report() -> Report {
    let metrics = |accuracy: f64, loss: f64| {
        BTreeMap::from([("accuracy".to_string(), accuracy), ("loss".to_string(), loss)])
    };
    Report {
        format: REPORT_FORMAT,
        job: "fashion".to_string(),
        model: "dense 512 relu, dense 10".to_string(),
        ending: "all epochs are done".to_string(),
        resumed_from_step: None,
        n_parameters: 669_706,
        epochs: 5,
        steps: 1175,
        samples: 300_000,
        samples_per_second: 61_234.5,
        metrics: FinalMetrics {
            test: metrics(0.8912, 0.30125),
            validation: BTreeMap::new(),
            train: metrics(0.91, f64::NAN),
        },
        details: BTreeMap::new(),
        seconds: Seconds {
            total: 75.0,
            reading: 1.0,
            compute: 69.0,
            input: 0.1,
            workers: 0.0,
            evaluation: 2.5,
            checkpoints: 1.2,
            other: 0.0,
        }
        .with_other(),
        setup: Setup {
            workers: 2,
            threads: 1,
            batch: 256,
            grain: 32,
            grains: 8,
            reason: "measured 1.8 times as fast as one worker of 2 threads".to_string(),
            device: "cpu".to_string(),
            kernel_set: "cpu-1".to_string(),
        },
        workers: Vec::new(),
        servers: Vec::new(),
        traffic: None,
        bubbles: Vec::new(),
        step: StepSeconds::default(),
        memory: Memory { peak_bytes: Some(312_400_000), planned_device_bytes: 45_100_000 },
        energy: Energy::Joules(1234.5),
        machine: Machine {
            host: "host".to_string(),
            system: "Linux 6.1".to_string(),
            processor: "a processor".to_string(),
            n_cores: 2,
            instruction_sets: vec!["avx2".to_string()],
            memory_bytes: Some(1 << 34),
            available_memory_bytes: None,
            memory_limit_bytes: None,
        },
        model_path: PathBuf::from("out/model.safetensors"),
    }
}

#[test]
fn the_summary_fits_one_screen_and_says_what_matters_first() {
    let expected = expect![[r#"
        fashion: all epochs are done; 5 epochs, 1,175 steps, 669,706 parameters
          test        accuracy 0.8912, loss 0.3013
          train       accuracy 0.9100, loss NaN
          time        1 min 15 s (compute 92 %, evaluation 3 %, checkpoints 2 %, reading 1 %, other 2 %); 61,235 samples/s
          set-up      2 workers of 1 thread, 8 grains of 32 samples a step: measured 1.8 times as fast as one worker of 2 threads
          memory      312.4 MB at most, 45.1 MB planned for the model
          energy      1234 J
          model       out/model.safetensors"#]];
    expected.assert_eq(&report().summary_lines().join("\n"));
    let quiet = Report { energy: Energy::Unknown("no counters".to_string()), ..report() };
    assert_eq!(quiet.summary_lines().len(), report().summary_lines().len() - 1);
}

#[test]
fn report_json_comes_back_and_has_the_keys_that_scripts_read() {
    let text = report().to_json();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert!(back.metrics.train["loss"].is_nan());
    assert_eq!(back.to_json(), text);
    expect![[r#"
        {
          "format": 1,
          "job": "fashion",
          "model": "dense 512 relu, dense 10",
          "ending": "all epochs are done",
          "resumed_from_step": null,
          "n_parameters": 669706,
          "epochs": 5,
          "steps": 1175,
          "samples": 300000,
          "samples_per_second": 61234.5,
          "metrics": {
            "train": {
              "accuracy": 0.91,
              "loss": "NaN"
            },
            "validation": {},
            "test": {
              "accuracy": 0.8912,
              "loss": 0.30125
            }
          },
          "seconds": {
            "total": 75.0,
            "reading": 1.0,
            "compute": 69.0,
            "input": 0.1,
            "workers": 0.0,
            "evaluation": 2.5,
            "checkpoints": 1.2,
            "other": 1.2000000000000028
          },
          "setup": {
            "workers": 2,
            "threads": 1,
            "batch": 256,
            "grain": 32,
            "grains": 8,
            "reason": "measured 1.8 times as fast as one worker of 2 threads",
            "device": "cpu",
            "kernel_set": "cpu-1"
          },
          "step": {},
          "memory": {
            "peak_bytes": 312400000,
            "planned_device_bytes": 45100000
          },
          "energy": {
            "joules": 1234.5
          },
          "machine": {
            "host": "host",
            "system": "Linux 6.1",
            "processor": "a processor",
            "n_cores": 2,
            "instruction_sets": [
              "avx2"
            ],
            "memory_bytes": 17179869184,
            "available_memory_bytes": null,
            "memory_limit_bytes": null
          },
          "model_path": "out/model.safetensors"
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn the_parts_of_the_time_add_up() {
    let seconds = report().seconds;
    let sum: f64 = seconds.parts().iter().map(|(_, part)| part).sum();
    assert!((sum - seconds.total).abs() < 1e-9);
}

#[test]
fn numbers_are_short_and_readable() {
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!(
        [0.0, 0.89, 12.345, 1234.5, 1e-7, 2.5e9].map(rounded),
        ["0.0000", "0.8900", "12.35", "1234", "1.000e-7", "2.500e9"]
    );
    assert_eq!(
        [0.04, 9.96, 59.6, 3725.0].map(duration),
        ["0.0 s", "10 s", "1 min 0 s", "1 h 2 min"]
    );
}

#[test]
fn what_moved_to_servers_and_what_was_saved_is_told() {
    let mut traffic =
        ServerTraffic { to_servers: 2_500_000, from_servers: 4_000, ..Default::default() };
    traffic.saved.rounding = Saved { before: 4_000_000, after: 2_000_000 };
    traffic.saved.zero_runs = Saved { before: 2_000_000, after: 2_001_000 };
    let lines = Report { traffic: Some(traffic), ..report() }.summary_lines();
    let line = lines.iter().find(|line| line.starts_with("  traffic")).unwrap();
    assert_eq!(
        line.trim(),
        "traffic     2.5 MB to servers, 4.0 kB from them; rounding saved 2.0 MB; zero runs cost 1.0 kB"
    );
}
