//! The model: a closed network of queues.
//!
//! Each processor repeats an operation: private work, then visits to *stations*, one at a time each. A station is a
//! cache line that others store to, or a lock. A visit to a line costs its hand-over from the last user. A visit to a
//! lock costs the hold, and the hand-overs of the lock's own lines.
//!
//! Throughput is by mean value analysis (Reiser and Lavenberg, 1980), exact for exponential service. Hand-overs and
//! holds hardly vary, so half of the service in progress is subtracted from a visitor's wait (Reiser, 1979).
//!
//! **Limits.** Lines that share a bus, directories of a coherence protocol that saturate, processors that run slower
//! when all are busy, and preempted holders of a lock are not in it. Each makes the truth slower than the prediction.

/// The time of a line's way between the processors of a machine.
#[derive(Clone, Copy, Debug)]
pub struct MachineClass {
    /// Processors in a socket.
    pub socket: usize,
    /// Nanoseconds from one processor to another of the same socket.
    pub inside_ns: f64,
    /// Nanoseconds from one socket to another.
    pub across_ns: f64,
}

impl MachineClass {
    /// A hand-over between `n` processors that come in random order. Sockets are filled one by one. The last user was
    /// this processor for one visit in `n`, and nothing moves then.
    fn hand_over_ns(&self, n: usize) -> f64 {
        let sockets = n.div_ceil(self.socket);
        let inside = (0..sockets).map(|i| (n - i * self.socket).min(self.socket) as f64);
        let n = n as f64;
        let same: f64 = inside.map(|inside| inside * (inside - 1.0)).sum::<f64>() / (n * n);
        let other = (n - 1.0) / n - same;
        same * self.inside_ns + other * self.across_ns
    }
}

/// A line or a lock.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    /// Hand-overs that an operation pays here.
    pub lines: f64,
    /// Nanoseconds that a lock is held.
    pub hold_ns: f64,
}

/// The work that a processor repeats.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Nanoseconds that concern no other processor.
    pub private_ns: f64,
    /// The lines and locks that it shares with the others.
    pub stations: Vec<Station>,
}

impl Operation {
    /// Operations a second of `n` processors.
    pub fn per_second(&self, machine: &MachineClass, n: usize) -> f64 {
        let hand_over = machine.hand_over_ns(n);
        let demands: Vec<f64> = self.stations.iter().map(|s| s.hold_ns + s.lines * hand_over).collect();
        let slowest = demands.iter().copied().fold(0.0, f64::max);
        let mut queues = vec![0.0; demands.len()];
        let mut rate = 0.0;
        for users in 1..=n {
            let waits: Vec<f64> = demands
                .iter()
                .zip(&queues)
                .map(|(demand, queue)| demand * (1.0 + queue - rate * demand / 2.0))
                .collect();
            rate = users as f64 / (self.private_ns + waits.iter().sum::<f64>());
            // The subtraction is an approximation; no station does more than one thing at a time.
            if slowest > 0.0 {
                rate = rate.min(1.0 / slowest);
            }
            queues = waits.iter().map(|wait| rate * wait).collect();
        }
        rate * 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_SOCKET: MachineClass = MachineClass { socket: 64, inside_ns: 60.0, across_ns: 150.0 };

    fn near(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 0.01, "{a} and {b}");
    }

    #[test]
    fn without_stations_throughput_grows_with_processors() {
        let operation = Operation { private_ns: 50.0, stations: Vec::new() };
        for n in [1, 2, 64, 384] {
            near(operation.per_second(&ONE_SOCKET, n), n as f64 * 2e7);
        }
    }

    #[test]
    fn one_processor_pays_no_hand_over() {
        let operation = Operation { private_ns: 100.0, stations: vec![Station { lines: 3.0, hold_ns: 0.0 }] };
        near(operation.per_second(&ONE_SOCKET, 1), 1e7);
    }

    #[test]
    fn a_line_lets_one_through_at_a_time() {
        let operation = Operation { private_ns: 50.0, stations: vec![Station { lines: 2.0, hold_ns: 0.0 }] };
        near(operation.per_second(&ONE_SOCKET, 64), 1e9 / (120.0 * 63.0 / 64.0));
    }

    /// As many as fit beside one another without waiting: with holds of equal length, half of the knee has few waits.
    #[test]
    fn a_lock_that_is_hardly_used_costs_its_hold() {
        let operation =
            Operation { private_ns: 9_900.0, stations: vec![Station { lines: 0.0, hold_ns: 100.0 }] };
        near(operation.per_second(&ONE_SOCKET, 10), 10.0 / 10_000.0 * 1e9);
        near(operation.per_second(&ONE_SOCKET, 400), 1e7);
    }

    #[test]
    fn hand_overs_between_sockets_cost_more() {
        assert_eq!(ONE_SOCKET.hand_over_ns(1), 0.0);
        near(ONE_SOCKET.hand_over_ns(64), 60.0 * 63.0 / 64.0);
        // Of 127 others, 63 are near and 64 far.
        near(ONE_SOCKET.hand_over_ns(128), (63.0 * 60.0 + 64.0 * 150.0) / 128.0);
    }
}
