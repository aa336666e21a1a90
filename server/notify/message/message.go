// Package message has the messages about events and Subscriptions: the bodies of webhooks, of WebSockets and of
// server-sent events.
package message

import (
	"strconv"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/subscription"
)

// AppendEvent appends a Notification message. subscription is "Subscription/<id>" or "",
// cursor may be "". The resource is left out of a deletion, and where resource is false.
func AppendEvent(dst []byte, e *matching.Event, id uuid.UUID, subscription, cursor string, resource bool) []byte {
	at := e.Version.LastUpdated
	if e.Kind == matching.VRead {
		at = e.Written
	}
	dst = append(dst, `{"id":"`...)
	dst = append(dst, id.String()...)
	dst = append(dst, `","timestamp":"`...)
	dst = at.UTC().AppendFormat(dst, matching.InstantFormat)
	dst = append(dst, `","event":"`...)
	dst = append(dst, e.Kind.String()...)
	dst = append(dst, `","resourceType":`...)
	dst = fhir.AppendString(dst, e.Version.ResourceType)
	dst = append(dst, `,"resourceId":`...)
	dst = fhir.AppendString(dst, e.Version.ID)
	dst = append(dst, `,"versionId":"`...)
	dst = strconv.AppendInt(dst, int64(e.Version.VersionID), 10)
	dst = append(dst, '"')
	if resource && len(e.Version.Body) > 0 {
		dst = append(dst, `,"resource":`...)
		dst = append(dst, e.Version.Body...)
	}
	if subscription != "" {
		dst = append(dst, `,"subscription":`...)
		dst = fhir.AppendString(dst, subscription)
	}
	if cursor != "" {
		dst = append(dst, `,"cursor":`...)
		dst = fhir.AppendString(dst, cursor)
	}
	return append(dst, '}')
}

// A Status is a SubscriptionStatus.
type Status struct {
	Type         string // heartbeat, handshake, query-status
	Subscription string // "Subscription/<id>"
	Status       string
	Events       int64 // since the start
	Error        string
	// Backport says that the Subscription has the form of the Backport IG. Topic is its canonical,
	// "" where none may be told.
	Backport bool
	Topic    string
}

// Append appends the SubscriptionStatus as JSON.
func (s Status) Append(dst []byte) []byte {
	dst = append(dst, `{"resourceType":"SubscriptionStatus"`...)
	if s.Subscription != "" {
		dst = append(dst, `,"subscription":`...)
		dst = fhir.AppendString(dst, s.Subscription)
	}
	dst = append(dst, `,"status":`...)
	dst = fhir.AppendString(dst, s.Status)
	dst = append(dst, `,"type":`...)
	dst = fhir.AppendString(dst, s.Type)
	dst = append(dst, `,"eventsSinceSubscriptionStart":"`...)
	dst = strconv.AppendInt(dst, s.Events, 10)
	dst = append(dst, '"')
	if s.Error != "" {
		dst = append(dst, `,"error":`...)
		dst = fhir.AppendString(dst, s.Error)
	}
	return append(dst, `,"notificationEvent":[]}`...)
}

// FormatHeartbeat returns the heartbeat of a connection that has no Subscription.
func FormatHeartbeat(events int64) []byte {
	return Status{Type: "heartbeat", Status: subscription.Active, Events: events}.Append(nil)
}
