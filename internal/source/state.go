package source

import "time"

// State is the state of a source at one moment.
type State struct {
	From      string    `json:"from,omitempty"`     // the URL of an API server, or paths
	Connected bool      `json:"connected"`          // the server answers, or the paths are watched
	Since     time.Time `json:"since,omitzero"`     // of the last change of Connected; zero: it never changed
	Trouble   string    `json:"trouble,omitempty"`  // the present failure, for people; empty: none
	LastEvent time.Time `json:"lastEvent,omitzero"` // the last list, read or change; zero: never

	// Unrepeatable is why a new run of the program could not read the same input, such as a pipe; empty: it could.
	Unrepeatable string `json:"-"`

	Problems int `json:"-"` // objects or files with problems now

	Objects map[string]int `json:"-"` // how many there are of each kind that was listed
	Files   int            `json:"-"` // how many are read
}
