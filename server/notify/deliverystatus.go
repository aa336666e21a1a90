package notify

// A deliveryStatus is the status of a delivery: the letter in the column status of notification_delivery.
type deliveryStatus byte

const (
	deliveryPending    deliveryStatus = 'p' // waits for its next attempt
	deliveryProcessing deliveryStatus = 'i' // a server has the lease of its subscriber, and sends it
	deliveryDelivered  deliveryStatus = 'd'
	deliveryFailed     deliveryStatus = 'f' // given up
)

// deliveryStatuses are all statuses of deliveries, by the names that clients use.
var deliveryStatuses = map[string]deliveryStatus{
	"pending": deliveryPending, "processing": deliveryProcessing, "delivered": deliveryDelivered, "failed": deliveryFailed,
}

// String returns the name that clients use.
func (s deliveryStatus) String() string {
	for name, status := range deliveryStatuses {
		if status == s {
			return name
		}
	}
	return "unknown"
}

// letter returns the status as parameters of SQL have it.
func (s deliveryStatus) letter() string { return string(rune(s)) }
