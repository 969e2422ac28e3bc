//! A socket with a timeout for clients that stop reading.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// How long a write may wait for the client.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection whose writes fail after a timeout without progress: otherwise an unread answer would be kept for the
/// lifetime of its connection.
pub(crate) struct Connection {
    stream: TcpStream,
    /// How long a write may wait for the client.
    patience: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Each token is sent at once; if that cannot be set, it is sent later.
        let _ = stream.set_nodelay(true);
        Self { stream, patience: PATIENCE, waiting: None }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::io::Read;
    use std::time::Instant;

    const HELD: Duration = Duration::from_millis(200);

    /// Writes more than the system buffers to a client that pauses before each of its reads, or never reads; returns
    /// the result.
    async fn written(pause: Option<Duration>) -> io::Result<()> {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let client = std::net::TcpStream::connect(socket.local_addr()?)?;
        let reading = pause.map(|pause| {
            let mut client = client.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut some = vec![0; 4 << 20];
                while client.read(&mut some).is_ok_and(|count| count > 0) {
                    std::thread::sleep(pause);
                }
            })
        });
        let (stream, _) = socket.accept().await?;
        let mut connection = Connection { patience: HELD, ..Connection::new(stream) };
        let (all, mut done) = (vec![0; 32 << 20], 0);
        while done < all.len() {
            let mut write = |context: &mut Context<'_>| {
                Pin::new(&mut connection).poll_write(context, &all[done..])
            };
            done += poll_fn(&mut write).await?;
        }
        drop(connection);
        reading.map_or(Ok(()), |reading| reading.join().map_err(|_| ErrorKind::Other.into()))
    }

    #[test]
    fn slow_readers_are_served_and_stalled_ones_disconnected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            written(Some(HELD / 10)).await.unwrap();
            let began = Instant::now();
            let kind = written(None).await.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::TimedOut));
            assert!(began.elapsed() >= HELD);
        });
    }
}
