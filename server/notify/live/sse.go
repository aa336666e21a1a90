package live

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/outcome"
	"kiln/server/web"
)

// reconnect is how soon a client comes back that lost its stream.
const reconnect = "retry: 2000\n"

// ServeEvents answers /notifications/events and /{Type}/$events; typ is "" for the former.
// Spec: https://html.spec.whatwg.org/multipage/server-sent-events.html.
func (s *Hub) ServeEvents(typ string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := s.serveEvents(w, r, typ); err != nil {
			web.ExchangeOf(w).Fail(r, err)
		}
	}
}

// serveEvents returns an error only before it has answered.
func (s *Hub) serveEvents(w http.ResponseWriter, r *http.Request, typ string) error {
	if err := s.Settings.CheckServed(r.Context(), config.SSEFeature); err != nil {
		return err
	}
	p := access.PrincipalFrom(r.Context())
	wish, from, err := s.streamWish(r, p, typ)
	if err != nil {
		return err
	}
	c := s.Settings.Current().SSE
	if n := s.streams.Add(1); n > int64(c.MaxConnections) {
		s.streams.Add(-1)
		w.Header().Set("Retry-After", "5")
		return tooMany("event streams", c.MaxConnections)
	}
	defer s.streams.Add(-1)
	ctx, done, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer done()
	if err := s.awaitBegun(ctx); err != nil {
		return err
	}
	cl, leave := s.joinClient(p, "sse")
	defer leave()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Del("Content-Length")
	w.WriteHeader(http.StatusOK)
	st := &stream{w: w, control: http.NewResponseController(w), client: cl}
	if r.Method == http.MethodHead {
		return nil
	}
	l := newListener(cl, from)
	l.typ, l.kinds, l.wish = wish.typ, wish.kinds, wish
	st.out.WriteString(reconnect)
	if from.instant.IsZero() { // a client that loses the stream before the first event comes back to here
		st.out.WriteString("id: " + matching.Cursor(from.position) + "\n")
	}
	st.out.WriteString("\n")
	if st.flush() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	l.refused = func(error) { cancel() } // it comes back with its cursor, and is refused by itself
	working.Go(func() {
		s.sendStoredMessages(ctx, cl)
		if err := s.listen(ctx, l, nil); err != nil && ctx.Err() == nil {
			s.Log.Warn("replay events", "error", err)
			cancel() // the client comes back with its cursor
		}
	})
	st.run(ctx, s)
	return nil
}

// streamWish reads the filter of a stream.
func (s *Hub) streamWish(r *http.Request, p *access.Principal, typ string) (all wish, from since, err error) {
	values, err := interaction.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return all, from, err
	}
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = values.Get("_since")
	}
	if from, err = parseSince(r.Context(), s.Store, text); err != nil {
		return all, from, err
	}
	values.Del("_since")
	values.Del("token")
	values.Del("lastEventId")
	events := matching.TakeList(values, "events")
	if typ != "" {
		w, err := s.parseWish(r.Context(), p, typ, events, "")
		if err == nil && len(values) > 0 {
			w.criteria, err = s.Evaluator.CompileCriteria(r.Context(), typ, values)
		}
		return w, from, err
	}
	types := matching.TakeList(values, "resourceType")
	for name := range values {
		return all, from, outcome.Invalid("/notifications/events has no parameter %q: expected resourceType, events and _since", outcome.Clip(name))
	}
	if len(types) == 0 {
		types = []string{""}
	}
	if len(types) > MaxListeners {
		return all, from, outcome.New(outcome.CodeTooCostly, "a stream has at most %d resource types", MaxListeners)
	}
	// One listener hears all, so that a replay is in the order of the log.
	seen := make(map[string]bool)
	for _, t := range types {
		if seen[t] {
			continue
		}
		seen[t] = true
		w, err := s.parseWish(r.Context(), p, t, events, "")
		if err != nil {
			return all, from, err
		}
		if len(types) == 1 {
			all = w
		}
		all.kinds = w.kinds
		all.types = append(all.types, w.typ)
	}
	return all, from, nil
}

// stream writes one stream of server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	client  *client
	out     bytes.Buffer
}

func (st *stream) add(m addressed) {
	if m.name != "" {
		st.out.WriteString("event: ")
		st.out.WriteString(m.name)
		st.out.WriteByte('\n')
	}
	if m.position.RID != 0 {
		st.out.WriteString("id: ")
		st.out.WriteString(matching.Cursor(m.position))
		st.out.WriteByte('\n')
	}
	st.out.WriteString("data: ")
	st.out.Write(m.data) // one line: JSON has no line breaks outside of strings, and none in them
	st.out.WriteString("\n\n")
}

func (st *stream) flush() error {
	_ = st.control.SetWriteDeadline(time.Now().Add(writeWait))
	_, err := st.w.Write(st.out.Bytes())
	st.out.Reset()
	if st.out.Cap() > 1<<16 {
		st.out = bytes.Buffer{}
	}
	if err == nil {
		err = st.control.Flush()
	}
	return err
}

// run writes events until the client goes, reads too slowly, or may no longer.
func (st *stream) run(ctx context.Context, s *Hub) {
	changed := s.Settings.NextChange()
	beat := time.NewTicker(max(s.Settings.Current().SSE.Heartbeat, time.Second))
	defer beat.Stop()
	expired, stop := untilExpiry(st.client.principal)
	defer stop()
	for {
		var page []addressed
		select {
		case <-ctx.Done():
			return
		case <-st.client.slow:
			return // it comes back with its cursor
		case <-changed:
			changed = s.Settings.NextChange()
			if !s.Settings.FeatureEnabled(access.WithPrincipal(ctx, st.client.principal), config.SSEFeature) {
				return
			}
			beat.Reset(max(s.Settings.Current().SSE.Heartbeat, time.Second))
		case <-st.client.queue.ready:
			page = st.client.nextMessages()
		case page = <-st.client.replay:
		case <-beat.C:
			st.add(addressed{notification: &notification{name: "heartbeat", data: message.FormatHeartbeat(st.client.events.Load())}})
		case <-expired:
			return
		case <-st.client.ended:
			return
		}
		for _, m := range page {
			st.add(m)
			if st.out.Len() > 1<<18 {
				if st.flush() != nil {
					return
				}
			}
		}
		if st.out.Len() > 0 && st.flush() != nil {
			return
		}
		for _, m := range page {
			st.client.noteWritten(m)
		}
	}
}
