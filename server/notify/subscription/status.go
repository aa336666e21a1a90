package subscription

// The statuses of a Subscription, as the resource and the table notification_subscription have them.
// Spec: https://hl7.org/fhir/R4/valueset-subscription-status.html.
const (
	Requested = "requested" // waits for its handshake
	Active    = "active"    // gets notifications
	Error     = "error"     // a delivery or the handshake failed: heartbeats look for its end
	Off       = "off"       // ended by its owner, its end, or the server
)
