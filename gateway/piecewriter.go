package gateway

import (
	"net/http"
	"time"
)

// pieceBytes is how much of an answer is written at once.
const pieceBytes = 64 << 10

// pieceWriter has what is answered over HTTP go out in pieces, each within WriteTimeout, and
// none once Drain's time is over: a client that does not read would have its handler, its
// place among the connections and Drain wait for as long as it likes.
type pieceWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	time time.Duration
	late <-chan struct{} // closed when Drain's time is over
}

func (g *Gateway) inPieces(w http.ResponseWriter) *pieceWriter {
	return &pieceWriter{w, http.NewResponseController(w), g.c.Limits.WriteTimeout, g.late}
}

// Unwrap lets http.ResponseController, and what takes a connection over, find the writer.
func (w *pieceWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *pieceWriter) Write(p []byte) (written int, err error) {
	for {
		piece := p[:min(len(p), pieceBytes)]
		_ = w.rc.SetWriteDeadline(w.deadline()) // what has no deadlines is a test's
		n, err := w.ResponseWriter.Write(piece)
		written += n
		if p = p[len(piece):]; err != nil || len(p) == 0 {
			return written, err
		}
	}
}

func (w *pieceWriter) deadline() time.Time {
	select {
	case <-w.late:
		return time.Unix(1, 0)
	default:
		return time.Now().Add(w.time)
	}
}
