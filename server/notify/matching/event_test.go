package matching

import (
	"testing"

	"github.com/google/uuid"
)

// Contract, Notifications 7: an event that is delivered twice has one id, made of the event and the
// subscriber.
func TestNotificationIDs(t *testing.T) {
	t.Parallel()
	one := NotificationID("Subscription/1", "Patient", "p", 1, Create)
	if one != NotificationID("Subscription/1", "Patient", "p", 1, Create) || one.Version() != 5 || one.Variant() != uuid.RFC4122 {
		t.Errorf("%s is not the same each time, or no UUIDv5", one)
	}
	for _, other := range []uuid.UUID{
		NotificationID("Subscription/2", "Patient", "p", 1, Create), NotificationID("Subscription/1", "Patient", "p", 2, Create),
		NotificationID("Subscription/1", "Patient", "q", 1, Create), NotificationID("Subscription/1", "Group", "p", 1, Create),
		NotificationID("Subscription/1", "Patient", "p", 1, VRead),
	} {
		if other == one {
			t.Error("another event or subscriber has the same id")
		}
	}
}
