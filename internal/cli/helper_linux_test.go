package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is the user of a program without privileges.
const nobody = 65534

// powerless puts a program into a user namespace in which it is not root.
func powerless() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getgid(), Size: 1}},
	}
}

// onTerminal runs a program of a script whose output is a terminal of a width and height, until it has cleared the
// terminal a number of times, and interrupts it. It prints the output.
//
//	onterminal WIDTH HEIGHT TIMES PROGRAM ARG...
func onTerminal() {
	var numbers [3]int
	for i := range numbers {
		n, err := strconv.Atoi(os.Args[1+i])
		check("onterminal", err)
		numbers[i] = n
	}
	master, slave, err := openTerminal(numbers[0], numbers[1])
	check("onterminal", err)
	cmd := exec.Command(os.Args[4], os.Args[5:]...)
	cmd.Stdout, cmd.Stderr = slave, os.Stderr
	check("onterminal", cmd.Start())
	var shown []byte
	buffer := make([]byte, 4096)
	for bytes.Count(shown, []byte("\x1b[H\x1b[J")) < numbers[2] {
		n, err := master.Read(buffer)
		check("onterminal", err)
		shown = append(shown, buffer[:n]...)
	}
	check("onterminal", cmd.Process.Signal(os.Interrupt))
	check("onterminal", cmd.Wait())
	_, err = os.Stdout.Write(bytes.ReplaceAll(shown, []byte("\r"), nil))
	check("onterminal", err)
}

func openTerminal(width, height int) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)}))
	if err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}
