//! The way from the engine thread to one reader: a bounded queue of updates that never makes the writer wait.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use overdraft_engine::Logprobs;

use super::update::{TokenOut, Update};

/// A request's updates. Dropping it cancels the request within a step; its prefix stays cached.
pub struct Stream {
    shared: Arc<Channel>,
    /// Wakes the engine thread.
    nudge: Arc<dyn Fn() + Send + Sync>,
}

/// The writer's end is the engine thread's.
#[derive(Default)]
pub(crate) struct Channel {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    updates: VecDeque<Update>,
    /// Of the updates that wait.
    bytes: usize,
    waker: Option<Waker>,
    /// The writer waits for the reader to have no more than so many bytes unread.
    held_above: Option<usize>,
    /// Nothing more will be sent.
    is_over: bool,
    /// Nobody will read.
    is_abandoned: bool,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it is held leaves a queue that is still a queue.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an update; tokens join tokens that are not read yet. Nothing is taken after the last.
    pub(crate) fn send(&self, update: Update) {
        let mut inner = self.lock();
        if inner.is_over || inner.is_abandoned {
            return;
        }
        inner.bytes += size(&update);
        inner.is_over = matches!(update, Update::Finished { .. } | Update::Failed { .. });
        match (inner.updates.back_mut(), update) {
            (Some(Update::Tokens(unread)), Update::Tokens(more)) => unread.extend(more),
            (_, update) => inner.updates.push_back(update),
        }
        let waker = inner.waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether more than so many bytes wait; then the engine thread is nudged once they do not.
    pub(crate) fn hold_above(&self, bytes: usize) -> bool {
        let mut inner = self.lock();
        let is_held = inner.bytes > bytes;
        inner.held_above = is_held.then_some(bytes);
        is_held
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.lock().is_abandoned
    }
}

fn size(update: &Update) -> usize {
    let token = |t: &TokenOut| size_of::<TokenOut>() + t.text.len() + t.top.len() * size_of::<(u32, f32)>();
    match update {
        Update::Tokens(tokens) => tokens.iter().map(token).sum(),
        Update::Scored(scores) => {
            scores.iter().map(|s| size_of::<Logprobs>() + size_of_val(&s.top[..])).sum()
        }
        _ => 0,
    }
}

impl Stream {
    pub(crate) fn new(nudge: Arc<dyn Fn() + Send + Sync>) -> (Self, Arc<Channel>) {
        let shared = Arc::new(Channel::default());
        (Self { shared: shared.clone(), nudge }, shared)
    }

    /// The next update; `None` after the last.
    pub async fn next(&mut self) -> Option<Update> {
        poll_fn(|context| self.poll(context)).await
    }

    /// The next update if there is one already.
    pub fn try_next(&mut self) -> Option<Update> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(update) => update,
            Poll::Pending => None,
        }
    }

    /// [`Self::next`] for a thread that may wait.
    pub fn blocking_next(&mut self) -> Option<Update> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        loop {
            match self.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(update) => return update,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        let mut inner = self.shared.lock();
        let Some(update) = inner.updates.pop_front() else {
            if inner.is_over {
                return Poll::Ready(None);
            }
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        inner.bytes -= size(&update);
        let is_awaited = inner.held_above.is_some_and(|most| inner.bytes <= most);
        if is_awaited {
            inner.held_above = None;
        }
        drop(inner);
        if is_awaited {
            (self.nudge)();
        }
        Poll::Ready(Some(update))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut inner = self.shared.lock();
        inner.is_abandoned = true;
        inner.updates.clear();
        drop(inner);
        (self.nudge)();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::FailKind;
    use overdraft_engine::Origin;

    fn tokens(text: &str) -> Update {
        let text = text.to_string();
        Update::Tokens(vec![TokenOut { id: 1, text, origin: Origin::Plain, logprob: None, top: vec![] }])
    }

    fn failed() -> Update {
        Update::Failed { message: "over".into(), kind: FailKind::Deadline }
    }

    fn stream() -> (Stream, Arc<Channel>) {
        Stream::new(Arc::new(|| {}))
    }

    #[test]
    fn unread_tokens_are_joined_and_counted() {
        let (mut reader, writer) = stream();
        writer.send(tokens("a"));
        let one = writer.lock().bytes;
        writer.send(tokens("b"));
        assert_eq!(writer.lock().bytes, 2 * one);
        let Some(Update::Tokens(both)) = reader.try_next() else { panic!("two tokens wait") };
        assert_eq!(both.iter().map(|t| t.text.as_str()).collect::<String>(), "ab");
        assert_eq!(writer.lock().bytes, 0);
        assert!(reader.try_next().is_none());
    }

    #[test]
    fn a_writer_that_is_held_up_is_nudged_once() {
        let nudges = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = nudges.clone();
        let count = move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        let (mut reader, writer) = Stream::new(Arc::new(count));
        for (bytes, is_held, want) in [(1 << 20, false, 0), (1, true, 1), (1, true, 2)] {
            writer.send(tokens("a"));
            assert_eq!(writer.hold_above(bytes), is_held);
            assert!(reader.try_next().is_some() && reader.try_next().is_none());
            assert_eq!(nudges.load(std::sync::atomic::Ordering::Relaxed), want);
        }
    }

    #[test]
    fn nothing_comes_after_the_last_update() {
        let (mut reader, writer) = stream();
        writer.send(failed());
        writer.send(tokens("late"));
        assert!(matches!(reader.blocking_next(), Some(Update::Failed { .. })));
        assert!(reader.blocking_next().is_none());
    }

    #[test]
    fn a_reader_that_waits_is_woken() {
        let (mut reader, writer) = stream();
        let thread = std::thread::spawn(move || {
            let first = matches!(reader.blocking_next(), Some(Update::Tokens(_)));
            (first, matches!(reader.blocking_next(), Some(Update::Failed { .. })))
        });
        writer.send(tokens("a"));
        writer.send(failed());
        assert_eq!(thread.join().unwrap(), (true, true));
    }

    #[test]
    fn a_dropped_stream_is_seen_and_takes_nothing_more() {
        let (reader, writer) = stream();
        assert!(!writer.is_abandoned());
        drop(reader);
        assert!(writer.is_abandoned());
        writer.send(tokens("nobody reads this"));
        assert_eq!(writer.lock().updates.len(), 0);
    }
}
