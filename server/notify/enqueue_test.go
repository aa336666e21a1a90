package notify

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"kiln/gen/db"
	"kiln/gen/index"
	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/owner"
	"kiln/server/search"
	"kiln/server/searchparam"
	"kiln/server/store"
	"kiln/server/store/storetest"
)

// Contract, Notifications 2: many subscriptions. A server that begins to match reads them in
// pages: the statements grow with the pages, and not with the subscriptions or their topics.
func TestSubscriptionsAreLoadedInPages(t *testing.T) {
	t.Parallel()
	s := serviceOn(t, storetest.New(t))
	parameters := &searchparam.Service{
		Base: search.NewRegistry(r4.Model, index.Parameters, index.Compartments), Value: index.Value, Model: r4.Model, Store: s.Store, Extract: index.Extract,
		NewID: uuid.NewString, Now: time.Now, Logger: s.Log,
	}
	if err := parameters.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts := s.Parts
	parts.Service = &interaction.Service{Model: r4.Model, Store: s.Store, Parameters: parameters, Now: time.Now, Settings: func() *interaction.Settings { return new(interaction.Settings) }}
	s = New(parts)

	const topic = "http://example.org/topic"
	put := func(typ, id, body string) *store.Write {
		r, err := fhir.Decode(r4.Model, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		w := &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id, Resource: r}
		if w.Body, err = fhir.Splice([]byte(body), nil); err == nil {
			w.Index, err = parameters.Index(id, r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	writes := []*store.Write{put("SubscriptionTopic", "t", `{"resourceType":"SubscriptionTopic","url":"`+topic+`","status":"active","resourceTrigger":[{"resource":"Patient"}],"canFilterBy":[{"resource":"Patient","filterParameter":"family"}]}`)}
	const count = 2*subscriptionPage + 10
	for i := range count {
		about := fmt.Sprintf(`"criteria":"Patient?family=x%d"`, i)
		if i%2 == 0 {
			about = fmt.Sprintf(`"topic":%q,"filterBy":[{"filterParameter":"family","value":"x%d"}]`, topic, i)
		}
		writes = append(writes, put("Subscription", fmt.Sprint("s", i),
			fmt.Sprintf(`{"resourceType":"Subscription","status":"active",%s,"channel":{"type":"websocket"}}`, about)))
	}
	err := s.Store.InTx(t.Context(), func(tx *store.Tx) error {
		if err := tx.Write(t.Context(), writes); err != nil {
			return err
		}
		for i := range count {
			p := db.PutSubscriptionParams{ID: fmt.Sprint("s", i), Status: "active", Owner: owner.Owner{}.Encode(), Started: true, Version: 1}
			if err := db.New(tx.Conn()).PutSubscription(t.Context(), p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	statements := tracetest.NewSpanRecorder()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(statements))
	ctx, span := traces.Tracer("test").Start(context.Background(), "load")
	r := s.readers()[0]
	if err := r.loadSubscribers(ctx); err != nil {
		t.Fatal(err)
	}
	span.End()
	if r.matcher.Size() != count {
		t.Errorf("%d subscriptions are matched, want %d", r.matcher.Size(), count)
	}
	n := 0
	for _, s := range statements.Ended() {
		if s.Name() == "db" {
			n++
		}
	}
	reading := func(f func()) (n int) {
		before := len(statements.Ended())
		ctx, span = traces.Tracer("test").Start(context.Background(), "topics")
		f()
		span.End()
		for _, s := range statements.Ended()[before:] {
			if s.Name() == "db" {
				n++
			}
		}
		return n
	}
	follow := func(bodies ...string) (statements int) {
		at, err := s.Store.ChangeHorizon(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, body := range bodies {
			if err := s.Store.Write(t.Context(), put("SubscriptionTopic", fmt.Sprint("t", i), body)); err != nil {
				t.Fatal(err)
			}
		}
		feed := store.NewFeed(s.Store, 10*time.Millisecond)
		defer feed.Close()
		follower := feed.Follow(at)
		defer follower.Close()
		var changes []store.Change
		for len(changes) < len(bodies) {
			more, err := follower.Next(t.Context(), 100, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range more { // earlier changes come too while another test has an open transaction
				if c.ResourceType == "SubscriptionTopic" {
					changes = append(changes, c)
				}
			}
		}
		return reading(func() {
			if _, err := r.enqueue(ctx, changes); err != nil {
				t.Fatal(err)
			}
		})
	}
	var others, again []string
	for i := range 10 {
		others = append(others, fmt.Sprintf(`{"resourceType":"SubscriptionTopic","url":"http://example.org/other%d","status":"active","resourceTrigger":[{"resource":"Patient"}]}`, i))
		again = append(again, fmt.Sprintf(`{"resourceType":"SubscriptionTopic","url":"`+topic+`","status":"active","version":"%d","resourceTrigger":[{"resource":"Patient","supportedInteraction":["update"]}],"canFilterBy":[{"filterParameter":"family"}]}`, i))
	}
	if n := follow(others...); n > 8 { // rights may be asked again meanwhile
		t.Errorf("ten topics that nobody names: %d statements", n)
	}
	if r.matcher.Size() != count {
		t.Errorf("%d subscriptions are matched afterwards, want %d", r.matcher.Size(), count)
	}
	if n := follow(again...); n > 15 {
		t.Errorf("ten writes of a topic that half of them name: %d statements", n)
	}
	if n < 7 || n > 9 { // two for each of three pages, and the search for the topic
		t.Errorf("%d statements, want 7", n)
	}
}
