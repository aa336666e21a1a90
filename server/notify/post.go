package notify

import (
	"context"
	"net/http"

	"kiln/server/notify/subscription"
	"kiln/server/notify/webhook"
)

// postMessage sends one message. id is the notification's.
func (s *Service) postMessage(ctx context.Context, c *subscription.Subscription, k webhook.Keys, id, contentType string, body []byte) webhook.Result {
	r, _ := s.exchangeMessage(ctx, c, k, id, contentType, body)
	return r
}

// exchangeMessage is postMessage, and returns the body of the answer too, up to the limit of a Sender.
func (s *Service) exchangeMessage(ctx context.Context, c *subscription.Subscription, k webhook.Keys, id, contentType string, body []byte) (webhook.Result, []byte) {
	timeout := s.Settings().Webhook.Timeout
	if c.Timeout > 0 {
		timeout = min(timeout, c.Timeout)
	}
	return s.sender.Send(ctx, webhook.Message{
		Method: http.MethodPost, URL: c.Endpoint, Header: c.Headers, ID: id, Subscriber: c.Reference(), ContentType: contentType, Body: body, Timeout: timeout,
	}, k)
}

// Send sends a message of another kind of subscriber than Subscriptions, signed with the
// server's key, by the rules of webhooks.
func (s *Service) Send(ctx context.Context, m webhook.Message) webhook.Result {
	r, _ := s.sender.Send(ctx, m, webhook.Keys{Current: s.Settings().Webhook.SigningKey})
	return r
}
