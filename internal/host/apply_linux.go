package host

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// Apply writes settings, each only if the host has another value. A failure does not keep others from being written.
func (h *Host) Apply(settings []Setting) []Effect {
	effects := make([]Effect, 0, len(settings))
	for _, s := range settings {
		effects = append(effects, h.make(s))
	}
	return effects
}

func (h *Host) make(s Setting) Effect {
	e := Effect{Name: s.Name, Wanted: s.Value}
	if e.Was, e.Err = h.values.Get(s.Name); e.Err != nil {
		return e
	}
	e.Is = e.Was
	if s.holds(e.Was) {
		return e
	}
	if err := h.values.Set(s.Name, s.Value); err != nil {
		e.Err = s.explain(err)
		return e
	}
	e.Is, e.Err = h.values.Get(s.Name)
	if e.Err == nil && !s.holds(e.Is) {
		e.Err = fmt.Errorf("set %s=%s: the kernel made it %s", s.Name, s.Value, e.Is)
	}
	return e
}

// holds reports whether a value satisfies the wanted one.
func (s Setting) holds(value string) bool {
	if !s.AtLeast {
		return value == s.Value
	}
	have, err1 := strconv.Atoi(value)
	want, err2 := strconv.Atoi(s.Value)
	return err1 == nil && err2 == nil && have >= want
}

// explain adds a reason to errors of settings that only the host itself has.
func (s Setting) explain(err error) error {
	if !s.HostOnly || !sysctl.Forbidden(err) {
		return err
	}
	return fmt.Errorf("%w; in a network namespace that is not the host's it cannot be set at all", err)
}

// Failed returns an error that names every setting that could not be made, on one line; nil if there is none.
func Failed(effects []Effect) error {
	var failures []string
	for _, e := range effects {
		if e.Err != nil {
			failures = append(failures, e.Err.Error())
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return errors.New("settings of the host: " + strings.Join(failures, "; "))
}
