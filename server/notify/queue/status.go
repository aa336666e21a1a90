package queue

// A Status is the status of a delivery: the letter in the column status of notification_delivery.
type Status byte

const (
	Pending    Status = 'p' // waits for its next attempt
	Processing Status = 'i' // a server has the lease of its subscriber, and sends it
	Delivered  Status = 'd'
	Failed     Status = 'f' // given up
)

// Statuses are all statuses of deliveries, by the names that clients use.
var Statuses = map[string]Status{
	"pending": Pending, "processing": Processing, "delivered": Delivered, "failed": Failed,
}

// String returns the name that clients use.
func (s Status) String() string {
	for name, status := range Statuses {
		if status == s {
			return name
		}
	}
	return "unknown"
}

// Letter returns the status as parameters of SQL have it.
func (s Status) Letter() string { return string(rune(s)) }
