package handover

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable is the environment variable with the number of the file descriptor from which the new run reads the listing.
// Receive unsets it, so that no child of the process inherits it.
const variable = "SLUICE_HANDOVER"

// program is the binary that this process runs.
const program = "/proc/self/exe"

// listing is a Handover in the file that the new run reads.
type listing struct {
	PID    int                        `json:"pid"`
	Files  map[string]uintptr         `json:"files"`
	Values map[string]json.RawMessage `json:"values"`
}

// Possible returns the reason why this process cannot re-execute its program; nil if none is known before the attempt.
func Possible() error {
	if err := unix.Access(program, unix.X_OK); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}

// Exec re-executes the program, and returns only if that fails. Call it on the main thread, which remains the main one.
func (h *Handover) Exec(args []string) error {
	syscall.ForkLock.Lock() // a child must not inherit the files
	defer syscall.ForkLock.Unlock()
	list, err := h.list()
	if err != nil {
		return fmt.Errorf("hand over to the new run: %w", err)
	}
	env := append(os.Environ(), variable+"="+strconv.Itoa(list))
	err = syscall.Exec(program, args, env)
	runtime.KeepAlive(h) // the garbage collector would close the files
	return fmt.Errorf("execute %s: %w", program, err)
}

// list lets the new run inherit the files and returns the descriptor of the file that lists them.
func (h *Handover) list() (int, error) {
	l := listing{PID: os.Getpid(), Files: map[string]uintptr{}, Values: h.Values}
	for name, f := range h.Files {
		fd, _, err := fcntl(f, unix.F_SETFD) // the new run inherits it, non-blocking, as other descriptors may be in use
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		l.Files[name] = fd
	}
	text, err := json.Marshal(l)
	if err != nil {
		return 0, err
	}
	fd, err := unix.MemfdCreate("sluice-handover", 0)
	if err != nil {
		return 0, fmt.Errorf("create a file in memory: %w", err)
	}
	for written := 0; written < len(text); {
		n, err := unix.Pwrite(fd, text[written:], int64(written))
		if err != nil {
			return 0, fmt.Errorf("write a file in memory: %w", err)
		}
		written += n
	}
	return fd, nil
}

// Receive returns the Handover of the previous run; nil if there was none. Call it once, before a child starts.
func Receive() (*Handover, error) {
	text, passed := os.LookupEnv(variable)
	if !passed {
		return nil, nil
	}
	if err := os.Unsetenv(variable); err != nil {
		return nil, err
	}
	fd, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", variable, err)
	}
	f := os.NewFile(uintptr(fd), variable)
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", variable, err)
	}
	var l listing
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("read %s: %w", variable, err)
	}
	if l.PID != os.Getpid() { // for another process
		return nil, nil
	}
	h := &Handover{Files: map[string]*os.File{}, Values: l.Values}
	for name, fd := range l.Files {
		unix.CloseOnExec(int(fd))
		h.Files[name] = os.NewFile(fd, name)
	}
	return h, nil
}
