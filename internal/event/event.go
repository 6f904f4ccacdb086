// Package event says what people should find with `kubectl describe`: an Event
// is told to a Recorder, which brings it to where people look.
package event

// Type says whether an Event is good to know or asks for attention.
type Type string

// The types, as the API spells them.
const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// The reasons that kube-proxy's users know.
const (
	ReasonStarting                  = "Starting"
	FailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"
	FailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck"
	FailedToStartMetricServer       = "FailedToStartMetricServer"
)

// What is being done; the last is not kube-proxy's.
const (
	actionStart   = "StartKubeProxy"
	actionListen  = "Listen"
	actionProgram = "Program"
)

// Object is what an Event is about; the zero value is the own Node.
type Object struct{ Kind, Namespace, Name string }

// Event is one thing that happened.
type Event struct {
	Object Object
	Type   Type
	Reason string // one word, for machines
	Action string // what was being done, one word
	Note   string // for people; what is longer than 1,024 bytes is cut off

	// Everywhere says that every node finds the same: one Event is enough.
	Everywhere bool
}

// Recorder brings Events to people. Record returns at once. It is safe for
// concurrent use.
type Recorder interface{ Record(e Event) }

// Discard records nothing: where there is no cluster nobody can look.
type Discard struct{}

// Record implements Recorder.
func (Discard) Record(Event) {}

// Starting is told when the proxy starts.
func Starting() Event {
	return Event{Type: Normal, Reason: ReasonStarting, Action: actionStart}
}

// StartFailed says that a server of the proxy could not be started, which ends
// the process. The reason is FailedToStartProxierHealthcheck or
// FailedToStartMetricServer.
func StartFailed(reason string, err error) Event {
	return Event{Type: Warning, Reason: reason, Action: actionStart, Note: err.Error()}
}

// HealthPortFailed says that the health check port of a Service could not be
// opened.
func HealthPortFailed(namespace, name string, err error) Event {
	return Event{
		Object: Object{Kind: "Service", Namespace: namespace, Name: name},
		Type:   Warning, Reason: FailedToStartServiceHealthcheck, Action: actionListen, Note: err.Error(),
	}
}
