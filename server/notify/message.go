package notify

import (
	"strconv"
	"time"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/notify/matching"
	"kiln/server/notify/subscription"
)

// instant is the format of timestamps.
const instant = "2006-01-02T15:04:05.000000Z07:00"

// appendMessage appends a Notification message. subscription is "Subscription/<id>" or "",
// cursor may be "". The resource is left out of a deletion, and where resource is false.
func appendMessage(dst []byte, e *matching.Event, id uuid.UUID, subscription, cursor string, resource bool) []byte {
	at := e.Version.LastUpdated
	if e.Kind == matching.VRead {
		at = e.Written
	}
	dst = append(dst, `{"id":"`...)
	dst = append(dst, id.String()...)
	dst = append(dst, `","timestamp":"`...)
	dst = at.UTC().AppendFormat(dst, instant)
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

// status is a SubscriptionStatus.
type status struct {
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

// append appends the SubscriptionStatus as JSON.
func (s status) append(dst []byte) []byte {
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

// heartbeatStatus is a message of a connection that has no Subscription.
func heartbeatStatus(events int64) []byte {
	return status{Type: "heartbeat", Status: subscription.Active, Events: events}.append(nil)
}

func rfc3339(t time.Time) string { return t.UTC().Format(instant) }
