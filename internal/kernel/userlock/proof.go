package userlock

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
)

// Both sides of a connection prove that they have the secret, which is not sent: each sends a random
// number, and the HMAC-SHA256 of its role and both numbers. The holder is first, so that a command sends
// nothing to another program that has got the port of a holder that has ended.
const (
	numberBytes = 16
	proofBytes  = sha256.Size
)

// errUnproven means that the peer does not have the secret.
var errUnproven = errors.New("the peer does not have the secret")

// role is a side of a connection.
type role string

const (
	holding    role = "holder"
	commanding role = "command"
)

// proof returns what a side with the secret sends.
func (r role) proof(secret string, command, holder []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	for _, part := range [][]byte{[]byte(r), command, holder} {
		_, _ = h.Write(part) // it returns no error
	}
	return h.Sum(nil)
}

func newNumber() []byte {
	b := make([]byte, numberBytes)
	_, _ = rand.Read(b) // it never fails
	return b
}

// proveHolder is the side of the holder.
func proveHolder(c io.ReadWriter, secret string) error {
	command, holder := make([]byte, numberBytes), newNumber()
	if _, err := io.ReadFull(c, command); err != nil {
		return err
	}
	if _, err := c.Write(append(holder[:numberBytes:numberBytes], holding.proof(secret, command, holder)...)); err != nil {
		return err
	}
	got := make([]byte, proofBytes)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !hmac.Equal(got, commanding.proof(secret, command, holder)) {
		return errUnproven
	}
	return nil
}

// proveCommand is the side of a command.
func proveCommand(c io.ReadWriter, secret string) error {
	command := newNumber()
	if _, err := c.Write(command); err != nil {
		return err
	}
	got := make([]byte, numberBytes+proofBytes)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	holder := got[:numberBytes]
	if !hmac.Equal(got[numberBytes:], holding.proof(secret, command, holder)) {
		return errUnproven
	}
	_, err := c.Write(commanding.proof(secret, command, holder))
	return err
}
