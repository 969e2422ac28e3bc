//! Fake peers that autotune for longer than their time limit, called like the peers of a bench.

use super::{PeerTimer, PeerTimings, PeerWorkload, ROUNDS};
use crate::peer_budget::PeerBudget;
use crate::workloads::qkv;
use facts::BackendKind;
use ops::{DType, Settings};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use verify::{Peer, Peers, ProcessLimits, Python, SampledCall, Session};

/// The results of three calls of attention, each with peers interleaved.
struct ComparisonResult {
    all_timings: Vec<PeerTimings>,
    /// The called peers, in order.
    called: Vec<String>,
    took: Duration,
}

fn all_timings(functions: &[&str], limit: Duration) -> ComparisonResult {
    let fakes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/tests/peers/fakes");
    let limits = ProcessLimits { time: Duration::from_secs(120), memory_bytes: 600 << 20 };
    let python = Python { interpreter: PathBuf::from("python3"), paths: vec![fakes], limits };
    let mut session = Session::start(python).expect("the tests of peers need python3 on PATH");
    let named = |function: &&str| Peer::function(&format!("attention={function}")).unwrap();
    let peers: Vec<Peer> = functions.iter().map(named).collect();
    let (backend, budget) = (BackendKind::Cpu, Duration::from_millis(20));
    let mut peers = Peers { session: &mut session, peers: &peers, backend, budget: Some(limit) };
    let (begin, mut called) = (Instant::now(), Vec::new());
    let mut time = PeerBudget::of(Some(limit), 1);
    time.begin("attention");
    let mut timer = PeerTimer { peers: &mut peers, time: &mut time };
    let (op, settings) = (ops::op("attention").unwrap(), Settings::new());
    let call = |width| {
        let shape = [1, 4, 1, width];
        let inputs = qkv(DType::F32, shape, shape);
        let call = op.bind(&inputs, &settings).unwrap();
        let (call, inputs, settings) = (&call, &inputs, &settings);
        let sampled = &mut SampledCall::of(op, (inputs, settings), 7);
        let given = PeerWorkload { case: "attention", call, inputs, settings, sampled, budget };
        let mut timings = PeerTimings::admit(&mut timer, given, &mut |step| {
            let crate::Step::Begins { peer: Some(peer), left: Some(left), .. } = step else {
                panic!("a peer begins, within a time: {step:?}");
            };
            assert!(left <= limit);
            called.push(peer.to_owned());
        });
        for _ in 0..ROUNDS {
            timings.round(&mut timer, false, budget / ROUNDS);
        }
        timings.confirm(&mut timer);
        assert_eq!(timings.refused, [""; 0]);
        timings
    };
    let all_timings = [8, 16, 24].map(call).into();
    ComparisonResult { all_timings, called, took: begin.elapsed() }
}

impl ComparisonResult {
    /// For each call: `timed`, or the reason why the peer was not timed.
    fn of(&self, peer: &str) -> Vec<String> {
        let of_call = |timings: &'_ PeerTimings| -> Option<String> {
            let timed = timings.runners.iter().find(|runner| runner.peer.name() == peer);
            let why = timings.not_run.iter().find(|left| left.peer == peer);
            match (timed, why) {
                (Some(runner), None) if runner.samples.count() >= 8 => Some("timed".to_owned()),
                (None, why) => why.map(|left| left.why.clone()),
                _ => None,
            }
        };
        self.all_timings
            .iter()
            .map(|timings| of_call(timings).expect("timed, or a reason"))
            .collect()
    }
}

#[test]
fn peer_that_tunes_for_too_long_is_stopped_without_affecting_the_others() {
    let limit = Duration::from_secs(18);
    let ended = all_timings(&["right:attention", "slow:tunes", "slow:tunes_briefly"], limit);
    assert!(ended.took < limit, "{:?}", ended.took);
    // The first was called before the process was killed, and again in the next one.
    for peer in ["right:attention", "slow:tunes_briefly"] {
        assert_eq!(ended.of(peer), ["timed"; 3]);
    }
    let why = ended.of("slow:tunes");
    // Half of the time for its call; then it is not called again.
    assert!(why[0].starts_with("no answer within the "), "{why:?}");
    assert!(why[0].ends_with(" s that were left for it; the process was killed"), "{why:?}");
    assert_eq!(why[1..], ["an earlier call took all of its time"; 2]);
    assert_eq!(ended.called.iter().filter(|peer| *peer == "slow:tunes").count(), 1);
}

#[test]
fn peer_that_hangs_while_it_is_timed_ends_the_time_of_all_peers_only() {
    let limit = Duration::from_secs(6);
    let ended = all_timings(&["right:attention", "slow:tires"], limit);
    // Killing the process takes some time in addition.
    assert!(ended.took < limit + Duration::from_secs(3), "{:?}", ended.took);
    let spent = "the 6 s for the peers of attention were spent";
    let why = ended.of("slow:tires");
    assert!(why[0].starts_with("no answer within the "), "{why:?}");
    assert_eq!(why[1..], [spent; 2]);
    // Results lost with the process are not shown, and are not findings.
    let gone = "the process that held it is gone";
    assert_eq!(ended.of("right:attention"), [gone, spent, spent]);
}
