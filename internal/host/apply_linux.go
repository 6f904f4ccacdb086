package host

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/linux/sysctl"
)

// Apply writes settings, each only if the host has another value. A failure does not
// keep others from being written.
func (h *Host) Apply(settings []Setting) []Effect {
	effects := make([]Effect, 0, len(settings))
	for _, s := range settings {
		effects = append(effects, h.make(s))
	}
	return effects
}

func (h *Host) make(s Setting) Effect {
	e := Effect{Name: s.Name, Wanted: s.Value}
	to := h.storeOf(s.Name)
	if e.Was, e.Err = to.Get(s.Name); e.Err != nil {
		return e
	}
	e.Is = e.Was
	if s.holds(e.Was) {
		return e
	}
	if err := to.Set(s.Name, s.Value); err != nil {
		e.Err = s.explain(err)
		return e
	}
	e.Is, e.Err = to.Get(s.Name)
	if e.Err == nil && !s.holds(e.Is) {
		e.Err = fmt.Errorf("set %s=%s: the kernel made it %s", s.Name, s.Value, e.Is)
	}
	return e
}

func (h *Host) storeOf(name string) store {
	if strings.HasPrefix(name, "/") {
		return h.files
	}
	return h.parameters
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

// Failed returns an error that names every setting that could not be made; nil
// if there is none.
func Failed(effects []Effect) error {
	var errs []error
	for _, e := range effects {
		errs = append(errs, e.Err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("settings of the host: %w", &failures{errs: err})
	}
	return nil
}

// failures joins errors on one line.
type failures struct{ errs error }

// Error implements error.
func (f *failures) Error() string { return strings.ReplaceAll(f.errs.Error(), "\n", "; ") }

// Unwrap gives the single errors to errors.Is.
func (f *failures) Unwrap() error { return f.errs }
