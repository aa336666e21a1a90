// Package simulator serves the page /launch of the demo. It plays the EHR, which launches a
// registered app with a patient and an encounter. At /launch/app it is an app itself, which
// shows the received token. It has no state: a cookie keeps the app's values between two
// requests.
//
// Only kiln serve --demo mounts it. It launches apps without a sign-in.
package simulator
