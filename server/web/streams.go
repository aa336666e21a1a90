package web

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"kiln/server/outcome"
)

// ErrEnding is the cause that a stream's context ends with when the server stops.
var ErrEnding = errors.New("the server is stopping")

// OpenStreams knows the long-lived answers (WebSocket, Server-Sent Events, large
// exports) of this server. The zero value is empty.
type OpenStreams struct {
	// Enter counts a stream of the request's client, and refuses one too many; nil
	// refuses none. It is set before the first Open.
	Enter func(w http.ResponseWriter, r *http.Request) (leave func(), err error)

	mu     sync.Mutex
	open   map[*stream]struct{}
	ending bool
	empty  chan struct{} // closed when ending and nothing is open
}

type stream struct{ cancel context.CancelCauseFunc }

// Open makes the answer of r a stream: the server's timeouts no longer hold for it.
// Its context ends when the client has gone and, with the cause ErrEnding, when the
// server stops; done must be called when the handler is through, hijacked or not.
// It fails with exception, 503, while the server stops.
func (s *OpenStreams) Open(w http.ResponseWriter, r *http.Request) (ctx context.Context, done func(), err error) {
	leave := func() {}
	if s.Enter != nil {
		if leave, err = s.Enter(w, r); err != nil {
			return nil, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		leave()
		return nil, nil, outcome.Unavailable("%v", ErrEnding)
	}
	control := http.NewResponseController(w)
	// Where a connection has no deadlines there are none to lift.
	_ = control.SetWriteDeadline(time.Time{})
	_ = control.SetReadDeadline(time.Time{})
	if x := ExchangeOf(w); x != nil {
		x.stream = true
		x.LeaveFlight()
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	st := &stream{cancel}
	if s.open == nil {
		s.open = make(map[*stream]struct{})
	}
	s.open[st] = struct{}{}
	return ctx, sync.OnceFunc(func() {
		cancel(nil)
		leave()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, st)
		if s.ending && len(s.open) == 0 {
			close(s.empty)
		}
	}), nil
}

// Len is how many streams are open.
func (s *OpenStreams) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// End tells every stream to end, takes no new ones, and waits until all have ended
// or ctx has, whose error it returns.
func (s *OpenStreams) End(ctx context.Context) error {
	s.mu.Lock()
	if !s.ending {
		s.ending, s.empty = true, make(chan struct{})
		if len(s.open) == 0 {
			close(s.empty)
		}
		for st := range s.open {
			st.cancel(ErrEnding)
		}
	}
	empty := s.empty
	s.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
