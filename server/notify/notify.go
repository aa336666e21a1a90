package notify

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/notify/config"
	"kiln/server/notify/live"
	"kiln/server/notify/matching"
	"kiln/server/notify/message"
	"kiln/server/notify/owner"
	"kiln/server/notify/queue"
	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
	"kiln/server/store"
	"kiln/server/telemetry"
	"kiln/server/web"
)

// Parts are the parts of the server that a Service uses.
type Parts struct {
	// Settings are those in force; Reconfigured tells of new ones.
	Settings func() *config.Config
	// Flag reports whether a feature is on for the client of a request: websocket or
	// sse. nil is what Settings say.
	Flag    func(ctx context.Context, feature string) bool
	Store   *store.Store
	Service *interaction.Service
	Streams *web.OpenStreams
	// Base is the base URL of a request, where Config.BaseURL is "".
	Base func(r *http.Request) string
	// Format is the content type, one of FHIR's, that a request asks for; nil is always
	// application/fhir+json.
	Format func(r *http.Request) (string, error)
	Rights owner.Rights // nil: everybody may read everything
	// Refresh makes the search parameters in force as new as the database; nil where they
	// never change.
	Refresh func(ctx context.Context) error
	// Audit keeps the AuditEvents of deliveries.
	Audit queue.Audit
	Log   *slog.Logger
	// Metrics gets the service's figures; nil counts nothing.
	Metrics prometheus.Registerer
	// Tracing makes the spans of webhooks; nil makes none.
	Tracing *telemetry.Tracing
}

// Service is the notifications of a server.
type Service struct {
	Parts
	watch         *config.Watch
	feed          *store.Feed
	metrics       *metrics
	subscriptions *subscription.Reader
	messages      *message.Composer
	queue         *queue.Queue
	hub           *live.Hub
	sender        *webhook.Sender
	life          *life
	kinds         []SubscriberKind
	// questionTimeout is how long one search of criteria may take, defaultQuestionTimeout.
	questionTimeout time.Duration
	stop            context.CancelFunc
	done            sync.WaitGroup
	room            room
	// sending and heartbeat are the settings at the last look.
	sending   atomic.Bool
	heartbeat atomic.Int64
}

// SubscriberKind is a kind of subscribers beside Subscriptions, such as Apps.
type SubscriberKind interface {
	// Prefix of the ids of its subscribers: "App/".
	Prefix() string
	// ResourceType is the type whose writes change subscribers: "App".
	ResourceType() string
	// Load returns the subscribers of a resource that is stored, none where it is
	// deleted or inactive; of every resource when id is "".
	Load(ctx context.Context, id string) ([]*matching.Subscriber, error)
	// Policy is when deliveries to a subscriber are tried again. Where it fails nothing is
	// handed over: the deliveries wait, and no attempt is counted.
	Policy(ctx context.Context, subscriber string) (webhook.Policy, error)
	// Timeout is how long one may take.
	Timeout() time.Duration
	// Deliver hands an event over: body is the Notification message. The Result says
	// whether it arrived.
	Deliver(ctx context.Context, subscriber string, d *queue.Delivery, body []byte) webhook.Result
	// DeadLetter is called for each delivery that is given up.
	DeadLetter(ctx context.Context, subscriber string, d *queue.Delivery, reason string)
}

// New returns a Service that has not begun.
func New(p Parts) *Service {
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{Parts: p, watch: &config.Watch{Current: p.Settings, Flag: p.Flag}, questionTimeout: matching.DefaultQuestionTimeout}
	s.sender = webhook.NewSender(p.Settings, p.Tracing)
	s.subscriptions = &subscription.Reader{
		Store: p.Store, Interactions: p.Service, Rights: p.Rights, Log: p.Log, CheckEndpoint: s.sender.CheckEndpoint,
	}
	s.subscriptions.Evaluator = s.evaluator()
	s.messages = &message.Composer{
		Store: p.Store, Interactions: p.Service, Rights: p.Rights, Evaluator: s.subscriptions.Evaluator, MaskHeaders: s.subscriptions.MaskHeaders,
		Address: func() string { return p.Settings().Address }, Log: p.Log,
	}
	s.metrics = newMetrics(s)
	s.queue = queue.New(queue.Parts{
		Store: p.Store, Settings: s.watch, Receivers: receivers{s}, ReadVersions: s.subscriptions.ReadVersions, Audit: p.Audit, Log: p.Log,
	})
	s.hub = live.New(live.Parts{
		Store: p.Store, Interactions: p.Service, Evaluator: s.subscriptions.Evaluator, Rights: p.Rights, Settings: s.watch, Streams: p.Streams,
		Subscriptions: s.subscriptions, Messages: s.messages, Refresh: s.refreshSearchParameters, Log: p.Log,
		CountDelivery: func(channel string, written time.Time) {
			s.metrics.countDelivery(channel, "", webhook.Result{}, written)
		},
	})
	s.life = newLife(s)
	return s
}

// Topics returns the canonicals of the topics in force, sorted.
func (s *Service) Topics(ctx context.Context) ([]string, error) { return s.subscriptions.Topics(ctx) }

// evaluator finds the subscribers of events.
func (s *Service) evaluator() *matching.Evaluator {
	return &matching.Evaluator{Store: s.Store, Interactions: s.Service, Rights: s.Rights, Log: s.Log, QuestionTimeout: s.questionTimeout, ReadVersions: s.subscriptions.ReadVersions}
}

// AddKind makes a kind of subscribers known, before Start.
func (s *Service) AddKind(k SubscriberKind) { s.kinds = append(s.kinds, k) }

// NewRule returns a rule for SubscriberKinds: events of the kinds on resources of a type
// that match a search; an empty query matches all. It fails as a search does.
func (s *Service) NewRule(ctx context.Context, typ string, kinds matching.Kinds, query string, test func(ctx context.Context, e *matching.Event) bool) (matching.Rule, error) {
	c, err := s.evaluator().ParseCriteria(ctx, typ, query)
	if err != nil {
		return matching.Rule{}, err
	}
	r := matching.Rule{ResourceType: typ, Kinds: kinds, Test: test}
	if len(c.Query.Clauses) > 0 {
		r.Current = c
	}
	return r, nil
}

// Start begins to follow the change log, writes of Subscriptions, and to work on the
// queue.
func (s *Service) Start() error {
	s.heartbeat.Store(int64(s.Settings().Webhook.Heartbeat))
	s.sending.Store(s.Settings().Enabled && s.Settings().Webhook.Enabled)
	if s.Metrics != nil {
		s.metrics.register(s.Metrics)
	}
	s.Store.Follow("Subscription", store.Hook{Before: s.beforeWrite, InTx: s.afterWrite, Committed: func(_ context.Context, changed bool) {
		if changed {
			s.life.wakeUp()
			s.queue.WakeUp()
		}
	}})
	s.Store.Follow("SubscriptionTopic", store.Hook{Before: s.subscriptions.CheckTopics, InTx: func(context.Context, *store.Tx, []*store.Write) (bool, error) { return true, nil },
		Committed: func(context.Context, bool) { s.subscriptions.ForgetTopics() }})
	s.feed = store.NewFeed(s.Store, s.Settings().Poll)
	ctx, stop := context.WithCancel(access.WithPrincipal(context.Background(), access.Open))
	s.stop = stop
	readers := s.readers()
	for _, r := range readers { // before the server listens, so that no event comes before them
		if !s.Settings().Enabled {
			break
		}
		if err := s.feed.Add(ctx, r.name); err != nil {
			return fmt.Errorf("add a reader of the change log: %w", err)
		}
	}
	s.done.Go(func() { s.queue.Run(ctx) })
	s.done.Go(func() { s.hub.Run(ctx, s.feed) })
	s.done.Go(func() { s.life.run(ctx) })
	s.done.Go(func() { s.life.watchOwners(ctx) })
	s.done.Go(func() { s.retain(ctx) })
	for _, r := range readers {
		s.done.Go(func() { r.run(ctx) })
	}
	return nil
}

// Close ends the work. Running deliveries are finished first or given back.
func (s *Service) Close() {
	if s.stop != nil {
		s.stop()
		s.done.Wait()
		s.feed.Close()
	}
}

// Forget makes the service read anew what it remembers of the database. Readers of the change log and connections
// compare the epoch themselves.
func (s *Service) Forget() { s.subscriptions.ForgetTopics() }

// refreshSearchParameters is Refresh.
func (s *Service) refreshSearchParameters(ctx context.Context) error {
	if s.Refresh == nil {
		return nil
	}
	return s.Refresh(ctx)
}

func (s *Service) db() *db.Queries { return db.New(s.Store.Pool()) }

// isMatchedStatus reports whether events of a subscription are looked for: what happens while
// one that was active is not is kept for it.
func isMatchedStatus(status string, started bool) bool {
	return status == subscription.Active || started && status != subscription.Off
}

// retain deletes rows older than the retention: soon after the start, as servers may never
// run for long, and then about every hour.
func (s *Service) retain(ctx context.Context) {
	for wait := time.Minute/2 + rand.N(time.Minute); store.SleepFor(ctx, wait); wait = time.Hour/2 + rand.N(time.Hour) {
		before := time.Now().Add(-s.Settings().Retention)
		if _, err := queue.Retain(ctx, s.Store, before); err != nil && ctx.Err() == nil {
			s.Log.Warn("delete old notifications", "error", err)
		}
	}
}

func timestamptz(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
