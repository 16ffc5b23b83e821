"""What is measured against peers and limits; ``make bench`` runs it all."""
