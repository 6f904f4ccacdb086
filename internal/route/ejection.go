package route

import (
	"errors"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// DefaultEjection returns the thresholds of "on".
func DefaultEjection() cluster.Ejection { return cluster.Ejection{Clients: 2, Row: 5} }

// maxEjection bounds thresholds, as Sluice remembers no more clients of a backend.
const maxEjection = 16

var errEjection = errors.New("expected on, off, or thresholds from 2 to 16 such as clients=2,row=5")

// ParseEjection parses "on", "off" or thresholds, of which one may be missing.
func ParseEjection(text string) (cluster.Ejection, error) {
	out := DefaultEjection()
	switch text {
	case "on":
		return out, nil
	case "off":
		return cluster.Ejection{}, nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		key, number, _ := strings.Cut(strings.TrimSpace(entry), "=")
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil || n < 2 || n > maxEjection {
			return cluster.Ejection{}, errEjection
		}
		switch key {
		case "clients":
			out.Clients = uint8(n)
		case "row":
			out.Row = uint8(n)
		default:
			return cluster.Ejection{}, errEjection
		}
	}
	return out, nil
}
