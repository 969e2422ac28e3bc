use super::*;
use crate::StateType;
use facts::BackendKind;
use std::thread::{JoinHandle, spawn};

const SECRET: &[u8] = b"word";

/// Runs a function on rank 0 and another on each other rank.
fn laid<T: Send + 'static>(
    ranks: usize,
    ended: RankEnded,
    other: impl Fn(Ranks) -> T + Clone + Send + 'static,
) -> (Ranks, Vec<JoinHandle<T>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let join = |rank| {
        let other = other.clone();
        spawn(move || other(Ranks::join(at, ShardRank { rank, ranks }, SECRET).unwrap()))
    };
    // A connection without the secret is not a rank.
    let mut stranger = Line::new(TcpStream::connect(at).unwrap()).unwrap();
    stranger.greet(b"wore", 1).unwrap();
    let others = (1..ranks).map(join).collect();
    let within = Duration::from_secs(30);
    (Ranks::lead(&listener, ranks, SECRET, within, ended).unwrap(), others)
}

fn unknown() -> RankEnded {
    Box::new(|_, _| None)
}

#[test]
fn all_reduce_gives_every_rank_the_same_bits() {
    let values = |rank: usize| -> Vec<f32> {
        (0..100_000).map(|at| (at * (rank + 1)) as f32 * 0.1).collect()
    };
    let (lead, others) = laid(3, unknown(), move |ranks| {
        let mut own = values(ranks.place().rank);
        ranks.sum(&mut own).unwrap();
        own
    });
    let mut own = values(0);
    lead.sum(&mut own).unwrap();
    let expect = values(0).into_iter().zip(values(1)).zip(values(2));
    let expect: Vec<f32> = expect.map(|((a, b), c)| a + b + c).collect();
    assert_eq!(own, expect);
    for other in others {
        assert_eq!(other.join().unwrap(), expect);
    }
}

#[test]
fn ended_rank_is_named_to_the_others() {
    let ended = |rank: usize, _: Duration| (rank == 2).then(|| "signal: 9 (SIGKILL)".to_owned());
    let (lead, others) = laid(4, unknown(), |ranks| match ranks.place().rank {
        2 => String::new(),
        _ => ranks.sum(&mut [1.0]).unwrap_err().to_string(),
    });
    lead.star().ended = Box::new(ended);
    let words = "rank 2 has ended: signal: 9 (SIGKILL)";
    assert_eq!(lead.sum(&mut [1.0]).unwrap_err().to_string(), words);
    let said: Vec<String> = others.into_iter().map(|other| other.join().unwrap()).collect();
    assert_eq!(said, [words, "", words]);
    // Rank 0 ends as well.
    let (lead, others) = laid(2, unknown(), |ranks| ranks.next().unwrap_err().to_string());
    drop(lead);
    assert_eq!(
        others.into_iter().map(|other| other.join().unwrap()).last().unwrap(),
        "rank 0 has ended"
    );
}

#[test]
fn missing_rank_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let lead = |ended: RankEnded, within| {
        let led = Ranks::lead(&listener, 2, SECRET, Duration::from_millis(within), ended);
        led.unwrap_err().to_string()
    };
    assert_eq!(lead(unknown(), 1), "rank 1 did not come in time");
    let gone: RankEnded = Box::new(|rank, _| (rank == 1).then(|| "exit status: 2".to_owned()));
    assert_eq!(lead(gone, 60_000), "rank 1 has ended: exit status: 2");
}

#[test]
fn abandoned_step_leaves_ranks_ready() {
    let (lead, others) = laid(2, unknown(), |ranks| {
        // Rank 0 abandons the step: values sent for its sum are not used for the next one.
        let Order::Reset(1) = ranks.next().unwrap() else { panic!("another order") };
        let given_up = ranks.sum(&mut [7.0]).unwrap_err().to_string();
        let Order::Reset(2) = ranks.next().unwrap() else { panic!("another order") };
        let mut sum = [10.0];
        ranks.sum(&mut sum).unwrap();
        // This rank abandons the step.
        let Order::Reset(3) = ranks.next().unwrap() else { panic!("another order") };
        ranks.refuse(&ModelError::fault("there are no tokens")).unwrap();
        let Order::Reset(4) = ranks.next().unwrap() else { panic!("another order") };
        ranks.sum(&mut sum).unwrap();
        (given_up, sum)
    });
    lead.order(&Order::Reset(1)).unwrap();
    lead.order(&Order::Reset(2)).unwrap();
    let mut sum = [1.0];
    lead.sum(&mut sum).unwrap();
    assert_eq!(sum, [11.0]);
    lead.order(&Order::Reset(3)).unwrap();
    let error = lead.sum(&mut [1.0]).unwrap_err().to_string();
    assert_eq!(error, "rank 1 failed: there are no tokens");
    lead.order(&Order::Reset(4)).unwrap();
    lead.sum(&mut sum).unwrap();
    assert_eq!(sum, [22.0]);
    let other = others.into_iter().map(|other| other.join().unwrap()).last().unwrap();
    assert_eq!(other, ("rank 0 has given the step up".to_owned(), [22.0]));
}

#[test]
fn ranks_use_the_state_type_of_rank_0() {
    let (lead, others) = laid(2, unknown(), |ranks| match ranks.next().unwrap() {
        Order::Open(opening) => opening.part(ranks.place()).unwrap().architecture.scan_states,
        order => panic!("{order:?}"),
    });
    let config = crate::shape("granite-hybrid-mini").unwrap();
    let source = crate::ModelSource::Random { config, seed: 1 };
    let room =
        (crate::Capacity { sequences: 1, tokens: 64 }, crate::LargestStep { tokens: 1, logits: 1 });
    let opening = Opening::new(&source, BackendKind::Cuda, crate::Storage::Bf16, room);
    let model = source.open().unwrap().with_scan_states(StateType::Bf16).unwrap();
    let device = backends::open(BackendKind::Cpu).unwrap();
    // The CPU does not support this state type; the order has been sent by then.
    let refused = lead.open(model.part(lead.place()).unwrap(), device, &opening);
    assert!(refused.is_err());
    for other in others {
        assert_eq!(other.join().unwrap(), StateType::Bf16);
    }
}
