//! A socket that gives up a client who does not read. Streams wait for their readers on their own, but a whole answer
//! of some megabytes, or the last words of a stream, would otherwise hold their connection for as long as the client
//! keeps it open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

pub(crate) struct Patient<S> {
    inner: S,
    patience: Duration,
    /// Runs while the system takes no more bytes.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(crate) fn new(inner: S, patience: Duration) -> Self {
        Self { inner, patience, waiting: None }
    }

    /// What came of a write: any progress ends the wait, and a wait that is too long ends the connection.
    fn watch<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.watch(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn a_reader_that_stops_is_given_up_and_a_slow_one_is_not() {
        block_on(async {
            let (end, mut reader) = tokio::io::duplex(64);
            let mut patient = Patient::new(end, Duration::from_millis(20));
            let error = patient.write_all(&[7; 1000]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let mut read = [0; 64];
            reader.read_exact(&mut read).await.unwrap();

            let (end, mut reader) = tokio::io::duplex(64);
            let mut patient = Patient::new(end, Duration::from_secs(600));
            let slow = tokio::spawn(async move {
                let mut all = Vec::new();
                let mut piece = [0; 10];
                while let Ok(n @ 1..) = reader.read(&mut piece).await {
                    all.extend_from_slice(&piece[..n]);
                    tokio::task::yield_now().await;
                }
                all.len()
            });
            patient.write_all(&[7; 1000]).await.unwrap();
            drop(patient);
            assert_eq!(slow.await.unwrap(), 1000);
        });
    }
}
