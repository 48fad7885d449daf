//! Tickets: the path of a purchase in a sale that requires one. A ticket is bound to its buyer and
//! sale, expires, and stands for one request: the first one that it is used with.

use super::challenge::seconds;
use crate::domain::{BuyerId, SaleId};
use crate::http::signing::{Signer, UnverifiedToken};

/// Purpose of the signatures of tickets.
const TICKET: &str = "ticket";

/// Begins every ticket's path, and no sale's id.
const PREFIX: char = '~';

/// Sale, expiry (seconds), number.
const TICKET_BYTES: usize = 4 + 4 + 8;

/// A ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// The sale's number in the ledger.
    pub sale_no: i32,
    pub expires_s: u32,
    /// Unique.
    pub number: u64,
}

/// A ticket as it was sent, not verified.
#[derive(Debug, Clone, Copy)]
pub struct UnverifiedTicket {
    token: UnverifiedToken<TICKET_BYTES>,
    ticket: Ticket,
}

/// Whether the path is a ticket's; others are ids of sales.
pub fn is_ticket(path_id: &str) -> bool {
    path_id.starts_with(PREFIX)
}

impl Ticket {
    pub fn is_expired(&self, now_ms: i64) -> bool {
        seconds(now_ms) >= self.expires_s
    }

    /// The path of the purchase.
    pub fn path_id(&self, signer: &Signer, sale: &SaleId, buyer: BuyerId) -> String {
        let mut bytes = self.sale_no.to_be_bytes().to_vec();
        bytes.extend(self.expires_s.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        format!("{PREFIX}{}", signer.seal(TICKET, sale, buyer, &bytes))
    }
}

impl UnverifiedTicket {
    /// Parses a path without verifying its signature.
    pub fn read(path_id: &str) -> Option<Self> {
        let token = UnverifiedToken::<TICKET_BYTES>::read(path_id.strip_prefix(PREFIX)?)?;
        let [s0, s1, s2, s3, e0, e1, e2, e3, number @ ..] = token.payload;
        let ticket = Ticket {
            sale_no: i32::from_be_bytes([s0, s1, s2, s3]),
            expires_s: u32::from_be_bytes([e0, e1, e2, e3]),
            number: u64::from_be_bytes(number),
        };
        Some(Self { token, ticket })
    }

    /// The number of the sale that it claims to be for.
    pub fn sale_no(&self) -> i32 {
        self.ticket.sale_no
    }

    /// The ticket, if it was issued to this buyer for this sale.
    pub fn verified(&self, signer: &Signer, sale: &SaleId, buyer: BuyerId) -> Option<Ticket> {
        signer.verify(TICKET, sale, buyer, &self.token).then_some(self.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_for_its_buyer_and_sale_until_it_expires() {
        let signer = Signer::new(b"0123456789abcdef0123456789abcdef");
        let (sale, other): (SaleId, SaleId) = ("s1".parse().unwrap(), "s2".parse().unwrap());
        let buyer = |number| BuyerId::new(number).unwrap();
        let ticket = Ticket { sale_no: 7, expires_s: 1_000, number: u64::MAX };
        let path = ticket.path_id(&signer, &sale, buyer(1));
        assert!(is_ticket(&path) && path.parse::<SaleId>().is_err(), "{path}");
        let sent = UnverifiedTicket::read(&path).unwrap();
        assert_eq!(sent.sale_no(), 7);
        assert_eq!(sent.verified(&signer, &sale, buyer(1)), Some(ticket));
        assert_eq!(sent.verified(&signer, &sale, buyer(2)), None);
        assert_eq!(sent.verified(&signer, &other, buyer(1)), None);
        assert!(!ticket.is_expired(999_999) && ticket.is_expired(1_000_000));
        for path in ["", "~", "s1", &path[1..], &path[..path.len() - 1]] {
            assert!(UnverifiedTicket::read(path).is_none(), "{path}");
        }
    }
}
