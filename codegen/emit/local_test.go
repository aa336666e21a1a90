package emit_test

import (
	"testing"

	"kiln/gen/r4"
	"kiln/server/fhir"
)

// TestOwnTypesRoundTrip decodes and encodes types that R4 lacks.
func TestOwnTypesRoundTrip(t *testing.T) {
	for _, c := range []struct{ name, body string }{
		{"headers and filter are maps", `{"resourceType":"App","id":"a","name":"x","status":"active",` +
			`"operations":[{"name":"risk","type":"execute","resourceType":"Patient","handler":{"type":"http","url":"https://e.org","method":"POST","headers":{"X-Key": "1","Accept":"a/b"}}}],` +
			`"subscriptions":[{"resourceType":"Observation","events":["create"],"filter":{"value":{"gt":5.50}},"handler":{"type":"webhook","url":"https://e.org","retryPolicy":{"maxRetries":3,"backoffSeconds":[1,5]}}}]}`},
		{"a subscription has a topic", `{"resourceType":"Subscription","status":"requested","channel":{"type":"rest-hook"},"topic":"http://t","filterBy":[{"filterParameter":"code","value":"x"}]}`},
		{"a heartbeat has its counter as a string", `{"resourceType":"SubscriptionStatus","subscription":"Subscription/1","status":"active","type":"heartbeat","eventsSinceSubscriptionStart":"3"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := string(fhir.Encode(nil, decode(t, c.body))); got != c.body {
				t.Errorf("got  %s\nwant %s", got, c.body)
			}
		})
	}
	app := decode(t, `{"resourceType":"App","operations":[{"handler":{"headers":{"X-Key": "1"}}}]}`).(*r4.App)
	if got, want := app.Operations[0].Handler.Headers.Text, `{"X-Key": "1"}`; got != want {
		t.Errorf("headers are %s, want %s", got, want)
	}
	if _, err := fhir.Decode(r4.Model, []byte(`{"resourceType":"App","operations":[{"handler":{"headers":"x"}}]}`)); err == nil {
		t.Error("headers that are no object are accepted")
	}
}
