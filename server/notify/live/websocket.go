package live

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/config"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/notify/subscription"
	"kiln/server/outcome"
	"kiln/server/web"
)

// Close codes of WebSockets in addition to RFC 6455's.
const (
	closeToken = 4401 // the token has ended or was revoked
	closeSlow  = 4008 // the client reads too slowly; the reason is cursor=…
)

const (
	// writeWait is how long one write may take.
	writeWait = 30 * time.Second
)

var writeBuffers sync.Pool

// ServeWebSocket answers /notifications/ws.
func (s *Hub) ServeWebSocket(w http.ResponseWriter, r *http.Request) { s.serveSocket(w, r, false) }

// serveSocket serves a WebSocket with the rights of the request's principal. onlyBound says that the
// client may do nothing but bind it with tokens.
func (s *Hub) serveSocket(w http.ResponseWriter, r *http.Request, onlyBound bool) {
	x := web.ExchangeOf(w)
	c := s.Settings.Current().WebSocket
	if err := s.Settings.CheckServed(r.Context(), config.WebSocketFeature); err != nil {
		x.Fail(r, err)
		return
	}
	if !websocket.IsWebSocketUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		x.Fail(r, outcome.UpgradeRequired("%s is a WebSocket: the request needs Upgrade: websocket", r.URL.Path))
		return
	}
	if !originAllowed(r, c.AllowedOrigins) {
		x.Fail(r, outcome.New(outcome.CodeForbidden, "the origin %q may not call this server (server.allowed_origins)", outcome.Clip(r.Header.Get("Origin"))))
		return
	}
	if n := s.sockets.Add(1); n > int64(c.MaxConnections) {
		s.sockets.Add(-1)
		x.Fail(r, tooMany("WebSockets", c.MaxConnections))
		return
	}
	defer s.sockets.Add(-1)
	ctx, done, err := s.Streams.Open(w, r)
	if err != nil {
		x.Fail(r, err)
		return
	}
	defer done()
	if err := s.awaitBegun(ctx); err != nil {
		x.Fail(r, err)
		return
	}
	upgrader := websocket.Upgrader{
		ReadBufferSize: 512, WriteBufferSize: 2048, WriteBufferPool: &writeBuffers, HandshakeTimeout: 10 * time.Second,
		CheckOrigin: func(*http.Request) bool { return true }, // above
	}
	// Messages to the user are for this connection from before it is answered.
	cl, leave := s.joinClient(access.PrincipalFrom(r.Context()), "websocket")
	defer leave()
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // answered
	}
	defer conn.Close()
	// The request's context ends with the hijack's handler; the work of the socket must not
	// outlive it.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := &socket{s: s, conn: conn, client: cl, ctx: ctx, cancel: cancel, answers: make(chan []byte, 16), listeners: make(map[string]*listener),
		bindings: make(map[string]*binding), onlyBound: onlyBound}
	var writing sync.WaitGroup
	writing.Go(k.write)
	k.working.Go(func() { s.sendStoredMessages(ctx, cl) })
	k.read()
	cancel(errClientGone)
	k.working.Wait()
	writing.Wait()
}

var errClientGone = errors.New("the client has gone")

// tooMany refuses a connection.
func tooMany(what string, most int) error {
	return outcome.AtCapacity("%d %s are open, as many as this server takes", most, what)
}

// originAllowed checks a browser's origin: the page's own host, or one that is configured.
func originAllowed(r *http.Request, allowed []string) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(allowed, "*") || slices.Contains(allowed, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// socket is one WebSocket. One goroutine reads it and one writes it.
type socket struct {
	s       *Hub
	conn    *websocket.Conn
	client  *client
	ctx     context.Context
	cancel  context.CancelCauseFunc
	answers chan []byte
	working sync.WaitGroup

	// onlyBound says that the client may do nothing but bind the connection; bound, that it has.
	onlyBound bool
	bound     atomic.Bool

	mu        sync.Mutex
	listeners map[string]*listener // by subscriptionId, or "bind " and id
	bindings  map[string]*binding  // by id of the Subscription
}

// closing is the cause of a socket that the server ends.
type closing struct {
	code   int
	reason string
}

func (c closing) Error() string { return c.reason }

// read receives messages until the client leaves or sends one that ends the connection.
func (k *socket) read() {
	k.conn.SetReadLimit(k.s.Settings.Current().WebSocket.MaxMessageBytes)
	// A client that neither sends nor answers pings has gone.
	alive := func() {
		_ = k.conn.SetReadDeadline(time.Now().Add(2*k.s.Settings.Current().WebSocket.Heartbeat + 10*time.Second))
	}
	alive()
	k.conn.SetPongHandler(func(string) error { alive(); return nil })
	k.conn.SetPingHandler(func(data string) error {
		alive()
		_ = k.conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(writeWait))
		return nil
	})
	for {
		kind, data, err := k.conn.ReadMessage()
		if err != nil {
			if errors.Is(err, websocket.ErrReadLimit) {
				// The library has sent 1009.
				k.cancel(errClientGone)
			}
			return
		}
		alive()
		k.conn.SetReadLimit(k.s.Settings.Current().WebSocket.MaxMessageBytes)
		if kind == websocket.TextMessage && !utf8.Valid(data) {
			k.fail(websocket.CloseInvalidFramePayloadData, "a text frame is UTF-8")
			return
		}
		if kind != websocket.TextMessage {
			k.sendError("", outcome.Invalid("a binary frame: messages are JSON in text frames"))
			continue
		}
		k.handleMessage(data)
	}
}

// fail ends a connection because of a client's message, and waits a moment for the answer.
// RFC 6455 §7.1.7, §8.1.
func (k *socket) fail(code int, reason string) {
	_ = k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(time.Second))
	k.cancel(errClientGone)
	_ = k.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	for {
		if _, _, err := k.conn.NextReader(); err != nil {
			return
		}
	}
}

// request is a message of the client.
type request struct {
	Type           string          `json:"type"`
	ResourceType   string          `json:"resourceType"`
	Events         []string        `json:"events"`
	Criteria       string          `json:"criteria"`
	Since          string          `json:"since"`
	Ref            json.RawMessage `json:"ref"`
	SubscriptionID string          `json:"subscriptionId"`
}

// handleMessage acts on one message.
func (k *socket) handleMessage(data []byte) {
	if token, ok := strings.CutPrefix(strings.TrimSpace(string(data)), bindWithToken); ok {
		k.bindToken(strings.Trim(token, ": \t\""))
		return
	}
	if id, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "bind "); ok && !k.onlyBound {
		k.bind(strings.TrimPrefix(strings.TrimSpace(id), "Subscription/"))
		return
	}
	var r request
	err := json.Unmarshal(data, &r)
	if len(r.Ref) > 1024 {
		k.sendError("", outcome.New(outcome.CodeTooLong, "ref is longer than 1024 bytes"))
		return
	}
	if err != nil { // ref is read nevertheless where only another member is of a wrong kind
		k.sendError(string(r.Ref), outcome.New(outcome.CodeStructure, "the message is no JSON object of the expected form: %s", outcome.JSONProblem(err)))
		return
	}
	if k.onlyBound && r.Type != "ping" {
		k.sendError(string(r.Ref), outcome.New(outcome.CodeForbidden, "this connection takes nothing but bind-with-token and ping"))
		return
	}
	switch r.Type {
	case "ping":
		k.answer(map[string]any{"type": "pong", "ref": r.Ref})
	case "subscribe":
		k.subscribe(r)
	case "unsubscribe":
		k.unsubscribe(r)
	default:
		k.sendError(string(r.Ref), outcome.NotSupported("there is no message type %q: expected subscribe, unsubscribe or ping", outcome.Clip(r.Type)))
	}
}

// answer sends a message that is no event. A client that sends more than it reads waits.
func (k *socket) answer(m map[string]any) {
	if ref, ok := m["ref"].(json.RawMessage); ok && len(ref) == 0 {
		delete(m, "ref")
	}
	b, err := json.Marshal(m)
	if err != nil {
		return
	}
	k.sendText(b)
}

func (k *socket) sendText(b []byte) {
	select {
	case k.answers <- b:
	case <-k.ctx.Done():
	}
}

// sendError answers with an error; the connection stays.
func (k *socket) sendError(ref string, err error) {
	code, text := "exception", "internal error"
	if o, ok := outcome.From(err); ok && outcome.Theirs(err) {
		code, text = string(o.Issues[0].Code), o.Error()
	} else if k.ctx.Err() == nil {
		k.s.Log.Error("answer a message of a WebSocket", "error", err)
	}
	k.answer(map[string]any{"type": "error", "code": code, "message": text, "ref": json.RawMessage(ref)})
}

// subscribe begins to listen, after a replay when since says so.
func (k *socket) subscribe(r request) {
	if r.ResourceType == "" {
		k.sendError(string(r.Ref), outcome.New(outcome.CodeRequired, "subscribe needs a resourceType"))
		return
	}
	w, err := k.s.parseWish(k.ctx, k.client.principal, r.ResourceType, r.Events, r.Criteria)
	var from since
	if err == nil {
		from, err = parseSince(k.ctx, k.s.Store, r.Since)
	}
	if err != nil {
		k.sendError(string(r.Ref), err)
		return
	}
	l := newListener(k.client, from)
	l.id, l.typ, l.kinds, l.wish = w.id(), w.typ, w.kinds, w
	if !k.claim(l.id, l, string(r.Ref)) {
		return
	}
	k.answer(map[string]any{"type": "subscribed", "subscriptionId": l.id, "resourceType": r.ResourceType, "events": w.kinds.Names(), "ref": r.Ref})
	k.start(l, nil, string(r.Ref))
}

// claim takes a place among the listeners of the connection. A listener of the same wish
// is replaced.
func (k *socket) claim(key string, l *listener, ref string) bool {
	k.mu.Lock()
	before := k.listeners[key]
	full := before == nil && len(k.listeners) >= MaxListeners
	if !full {
		k.listeners[key] = l
	}
	k.mu.Unlock()
	if full {
		k.sendError(ref, outcome.New(outcome.CodeTooCostly, "a connection has at most %d subscriptions", MaxListeners))
		return false
	}
	if before != nil {
		k.s.removeListener(before)
	}
	return true
}

// start listens; a replay runs beside the reading, so that the client can still be heard.
func (k *socket) start(l *listener, rules []matching.Rule, ref string) {
	l.refused = func(err error) {
		go func() {
			k.forget(l)
			k.sendError(ref, err)
		}()
	}
	k.working.Go(func() {
		err := k.s.listen(k.ctx, l, rules)
		if err != nil && k.ctx.Err() == nil {
			k.sendError(ref, err)
		}
		if err != nil {
			k.forget(l)
		}
		k.mu.Lock()
		gone := true
		for _, other := range k.listeners {
			gone = gone && other != l
		}
		k.mu.Unlock()
		if gone { // unsubscribed during the replay
			k.s.removeListener(l)
		}
	})
}

// forget takes a listener off the connection that hears of nothing any more: it holds back
// no cursor.
func (k *socket) forget(l *listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, other := range k.listeners {
		if other == l {
			delete(k.listeners, key)
		}
	}
}

// unsubscribe ends one subscription, or all on a type.
func (k *socket) unsubscribe(r request) {
	var ended []*listener
	k.mu.Lock()
	for key, l := range k.listeners {
		if l.bind == "" && (r.SubscriptionID != "" && l.id == r.SubscriptionID ||
			r.SubscriptionID == "" && r.ResourceType != "" && (l.typ == r.ResourceType || l.typ == "" && r.ResourceType == "*")) {
			ended = append(ended, l)
			delete(k.listeners, key)
		}
	}
	k.mu.Unlock()
	if len(ended) == 0 {
		k.sendError(string(r.Ref), outcome.New(outcome.CodeNotFound, "there is no such subscription on this connection"))
		return
	}
	for _, l := range ended {
		k.s.removeListener(l)
	}
	m := map[string]any{"type": "unsubscribed", "ref": r.Ref}
	if r.SubscriptionID != "" {
		m["subscriptionId"] = r.SubscriptionID
	}
	if r.ResourceType != "" {
		m["resourceType"] = r.ResourceType
	}
	k.answer(m)
}

// bind is R4's websocket channel: the client names a Subscription, and gets a ping for each
// of its events. Spec: https://hl7.org/fhir/R4/subscription.html#channels.
func (k *socket) bind(id string) {
	ctx := access.WithPrincipal(k.ctx, k.client.principal)
	err := k.s.Interactions.CheckAllowed(ctx, access.Read, "Subscription", id)
	var from interaction.Reader
	if err == nil {
		from, err = k.s.Interactions.VisibleReader(ctx, k.s.Store)
	}
	if err == nil {
		_, err = from.Read(ctx, "Subscription", id) // what may not be read is absent
	}
	var c *subscription.Subscription
	if err == nil {
		c, err = k.s.Subscriptions.Read(ctx, id)
	}
	if err == nil && (!c.WebSocket || c.Status == subscription.Off) {
		err = outcome.Invalid("Subscription/%s is not active on the channel websocket", id)
	}
	var now since
	if err == nil {
		now, err = parseSince(k.ctx, k.s.Store, "")
	}
	if err != nil {
		k.sendError("", err)
		return
	}
	l := newListener(k.client, now)
	l.bind = id
	if !k.claim("bind "+id, l, "") {
		return
	}
	k.sendText([]byte("bound " + id))
	k.start(l, c.Rules, "")
}

// write sends messages until the connection ends, and then the reason.
func (k *socket) write() {
	changed := k.s.Settings.NextChange()
	beat := time.NewTicker(max(k.s.Settings.Current().WebSocket.Heartbeat, time.Second))
	defer beat.Stop()
	expired, stop := untilExpiry(k.client.principal)
	defer stop()
	var unbound <-chan time.Time
	if k.onlyBound {
		unbound = time.After(bindingWait)
	}
	end := func(code int, reason string) {
		_ = k.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(time.Second))
		// The reader ends with the client's answer, or soon.
		_ = k.conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	}
	for {
		// A client that is too slow learns so before what its queue still has.
		select {
		case <-k.client.slow:
			k.cancel(closing{closeSlow, "slow"})
			end(closeSlow, "cursor="+k.cursor())
			return
		default:
		}
		var err error
		var page []addressed
		select {
		case <-k.client.slow:
			continue
		case <-k.ctx.Done():
			if errors.Is(context.Cause(k.ctx), web.ErrEnding) {
				end(websocket.CloseGoingAway, "the server is stopping")
			}
			return
		case <-k.client.queue.ready:
			page = k.client.nextMessages()
		case page = <-k.client.replay:
		case b := <-k.answers:
			err = k.writeText(b)
		case <-changed:
			changed = k.s.Settings.NextChange()
			if !k.s.Settings.FeatureEnabled(access.WithPrincipal(k.ctx, k.client.principal), config.WebSocketFeature) {
				k.cancel(closing{websocket.CloseGoingAway, "off"})
				end(websocket.CloseGoingAway, "notifications by WebSocket are switched off")
				return
			}
			beat.Reset(max(k.s.Settings.Current().WebSocket.Heartbeat, time.Second))
			// The answer makes the reader wait as long as the new heartbeats need.
			err = k.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeWait))
		case <-beat.C:
			if !k.onlyBound { // heartbeats of the Backport IG are by Subscription
				err = k.writeText(message.FormatHeartbeat(k.client.events.Load()))
			}
			if err == nil {
				err = k.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeWait))
			}
		case <-expired:
			k.cancel(closing{closeToken, "token"})
			end(closeToken, "the access token has ended")
			return
		case <-unbound:
			if !k.bound.Load() {
				k.cancel(closing{closeToken, "token"})
				end(closeToken, "no bind-with-token came")
				return
			}
		case <-k.client.ended:
			k.cancel(closing{closeToken, "token"})
			end(closeToken, "the access was revoked")
			return
		}
		for _, m := range page {
			if err = k.writeText(k.text(m)); err != nil {
				break
			}
			k.client.noteWritten(m)
		}
		if err != nil {
			k.cancel(errClientGone)
			k.conn.Close() // ends the reader
			return
		}
	}
}

// text is a message as this connection gets it.
func (k *socket) text(m addressed) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return m.textFor(k.listeners)
}

// cursor is where the connection goes on that ends now.
func (k *socket) cursor() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p, ok := findResumePosition(k.listeners); ok {
		return matching.Cursor(p)
	}
	return ""
}

func (k *socket) writeText(b []byte) error {
	_ = k.conn.SetWriteDeadline(time.Now().Add(writeWait))
	return k.conn.WriteMessage(websocket.TextMessage, b)
}
